"""Whatever one request, group, partition or periodic task does, the turn continues for the others."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logbus_broker.api import produce as produce_handler
from logbus_broker.api.handler import Pending
from logbus_broker.api.purgatory import Deadline
from logbus_broker.errors import StartupError
from logbus_broker.groups.group import Group
from logbus_broker.log.background_tasks import Steps, Until
from logbus_broker.log.log_directory import CLEAN_MARKER

from tests.support.engine import Harness, batch, produced
from tests.support.wire import Wanted

ERRORS = [RuntimeError("injected"), MemoryError(), struct.error("injected")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path / "data")
    harness.create("clicks", 2)
    yield harness
    harness.close()


def produce(broker: Harness, index: int = 0) -> Pending:
    return broker.produce(batch(b"v"), index=index)


def code_of(broker: Harness, pending: Pending) -> int:
    broker.settle()
    return int(produced(pending).error_code)


def once(error: Exception, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises on its first call."""
    calls = [error]

    def sabotaged(*arguments: Any, **named: Any) -> Any:
        if calls:
            raise calls.pop()
        return original(*arguments, **named)

    return sabotaged


def is_right(broker: Harness) -> bool:
    return code_of(broker, produce(broker)) == 0 and broker.engine.partitions.get("clicks", 0).end_offset > 0


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_answer_that_cannot_be_written_costs_its_own_connection(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception, defects: list[str]
) -> None:
    """Found in review: one packet with a topic name of 32,767 bytes ended the process here."""
    monkeypatch.setattr(produce_handler, "encode_produce_response", once(error, produce_handler.encode_produce_response))
    first, second = produce(broker), produce(broker, 1)
    broker.turn()
    assert (first.closes, first.silent, second.closes) == ("defect", True, None)
    assert code_of(broker, second) == 0
    assert len(defects) == 1
    defects.clear()
    assert is_right(broker)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_long_poll_that_cannot_be_answered_costs_its_own_connection(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception, defects: list[str]
) -> None:
    from logbus_broker.api import fetch

    waiting = [broker.fetch(Wanted(topic="clicks"), wait_ms=100) for _ in range(2)]
    monkeypatch.setattr(fetch, "_answer", once(error, fetch._answer))
    broker.turn(after_ms=100)
    assert sorted(str(pending.closes) for pending in waiting if isinstance(pending, Pending)) == ["None", "defect"]
    defects.clear()
    assert is_right(broker)


@pytest.mark.parametrize(
    "step",
    [
        "context.deadlines.expire",
        "context.flusher.end_turn",
        "context.groups.expire",
        "tasks.work",
        "_cleaner.work",
        "_retention.work",
        "context.produce_turn.end",
    ],
)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_step_of_a_turn_that_raises_keeps_no_other_from_being_made(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception, defects: list[str]
) -> None:
    owner: Any = broker.engine
    *path, name = step.split(".")
    for part in path:
        owner = getattr(owner, part)
    pending = produce(broker)
    monkeypatch.setattr(owner, name, once(error, getattr(owner, name)))
    broker.clock.advance_ms(10 * 60_000)  # everything is due
    broker.engine.context.groups.due = broker.engine.tasks.due = broker.engine.context.deadlines.due = 0.0
    broker.turn()
    assert broker.engine.health.defects == 1
    assert len(defects) == 1
    defects.clear()
    broker.settle()
    assert pending.done
    assert is_right(broker)
    broker.settle(after_ms=10 * 60_000)
    assert dict(broker.engine.health.troubles) == {}


def test_what_a_task_stages_in_a_turn_that_failed_is_written_in_it(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    staged: list[Pending] = []
    waits: list[Callable[[Any, BaseException | None], None]] = []

    def steps() -> Steps:
        yield Until(waits.append)
        staged.append(produce(broker))

    broker.engine.tasks.begin(steps(), failed=pytest.fail)
    flusher = broker.engine.context.flusher
    monkeypatch.setattr(flusher, "end_turn", once(RuntimeError("injected"), flusher.end_turn))
    waits[0](None, None)
    broker.turn()
    assert [(pending.done, code_of(broker, pending)) for pending in staged] == [(True, 0)]
    assert broker.engine.partitions.get("clicks", 0).end_offset == 1
    defects.clear()


def test_what_a_periodic_task_stages_is_written_in_its_turn(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    staged: list[Pending] = []
    periodic = broker.engine._periodics[2]
    monkeypatch.setattr(periodic, "action", lambda: staged.append(produce(broker)))
    broker.turn(after_ms=broker.engine.config.offsets_retention_check_ms)
    assert [(pending.done, code_of(broker, pending)) for pending in staged] == [(True, 0)]


def test_a_request_that_the_cluster_can_answer_does_not_expire_first_in_a_turn_that_failed(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    deadlines, told = broker.engine.context.deadlines, list[str]()

    class Waiting(Deadline):
        def expire(self) -> None:
            told.append("expired")

    waiting = Waiting(broker.clock.monotonic() + 1)
    deadlines.add(waiting)

    def answer(now: float) -> None:
        if not waiting.is_over:
            told.append("answered")
            deadlines.cancel(waiting)

    cluster = SimpleNamespace(work=once(RuntimeError("injected"), answer), drain=lambda: None)
    monkeypatch.setattr(broker.engine, "cluster", cluster)
    broker.turn(after_ms=1_000)
    assert told == ["answered"]
    defects.clear()


def test_a_periodic_task_that_fails_is_a_trouble_and_is_tried_again(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    partitions = broker.engine.partitions
    periodic = broker.engine._periodics[1]
    monkeypatch.setattr(periodic, "action", once(RuntimeError("injected"), partitions.expire_producers))
    broker.settle(after_ms=broker.engine.config.producer_expiration_check_ms)
    assert dict(broker.engine.health.troubles) == {"forgetting producers": "injected"}
    defects.clear()
    broker.settle(after_ms=broker.engine.config.producer_expiration_check_ms)
    assert dict(broker.engine.health.troubles) == {}


def test_a_group_that_cannot_go_on_keeps_no_other_from_its_deadline(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    from tests.support.group_client import Client

    client = Client(broker)
    expired: list[str] = []
    original = Group.expire

    def expire(group: Group, now: float) -> Any:
        expired.append(group.group_id)
        if group.group_id == "broken" and expired.count("broken") == 1:
            raise RuntimeError("injected")
        return original(group, now)

    monkeypatch.setattr(Group, "expire", expire)
    for group in ("broken", "fine"):
        client.group = group
        client.join(version=3)  # gets its id after the group's initial rebalance delay
    expired.clear()
    broker.turn(after_ms=broker.engine.config.group_initial_rebalance_delay_ms)
    assert sorted(expired) == ["broken", "fine"]
    assert len(defects) == 1
    defects.clear()
    broker.turn()
    assert expired.count("broken") == 1, "not in every turn"
    broker.turn(after_ms=1_000)
    assert expired.count("broken") == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_that_fails_does_not_change_what_the_next_one_has_to_do(tmp_path: Path, is_clean: bool) -> None:
    first = Harness(tmp_path)
    first.create("clicks")
    first.close() if is_clean else first.crash()
    topics = tmp_path / "topics.json"
    good = topics.read_bytes()
    topics.write_bytes(b"{")
    with pytest.raises(StartupError):
        Harness(tmp_path)
    assert (tmp_path / CLEAN_MARKER).exists() is is_clean
    topics.write_bytes(good)
    again = Harness(tmp_path)
    assert again.engine.partitions.get("clicks", 0).log.recovery.was_clean is is_clean
    again.close()
