"""What a real log can do to a load: odd records, gaps, truncations, a recreated topic, a killed broker. The outcome is always
either a table equal to a single-threaded reading of the topic, or a clear error and the table as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.loads.engine import connect
from logbus.model import milliseconds
from logbus.waiting import wait_until
from logbus_spark import records
from logbus_spark.application import LoadState, WindowOutcome
from sqlalchemy import Engine

from tests.support.broker import AnyBroker, LogbusBroker, any_broker, client_settings
from tests.support.ledgers import at
from tests.support.real_pipeline import RealPipeline
from tests.support.topics import read_partition

pytestmark = pytest.mark.usefixtures("without_spark")

Make = Callable[..., RealPipeline]
IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def engine(postgres_server: Any) -> Iterator[Engine]:
    engine = connect(postgres_server.create_database("real_log"))
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    """A broker that compacts without waiting."""
    with any_broker(tmp_path_factory.mktemp("broker"), settings={"log.cleaner.backoff.ms": "50"}) as running:
        yield running


@pytest.fixture
def make(broker: AnyBroker, engine: Engine) -> Make:
    def make(*, client: dict[str, Any] | None = None, **options: Any) -> RealPipeline:
        return RealPipeline(broker.bootstrap, engine, client={**client_settings(broker), **(client or {})}, **options)

    return make


def states(outcomes: list[WindowOutcome]) -> list[LoadState]:
    return [outcome.state for outcome in outcomes]


def disturb_the_reading(monkeypatch: pytest.MonkeyPatch, disturb: Callable[[], None]) -> None:
    """Calls `disturb` once, after the first records that a task has read."""
    reading, done = records.read_lists, threading.Event()

    def read_lists(*arguments: Any, **options: Any) -> Iterator[Any]:
        for messages in reading(*arguments, **options):
            yield messages
            if messages and not done.is_set():
                done.set()
                disturb()

    monkeypatch.setattr(records, "read_lists", read_lists)


def test_records_of_any_time_are_loaded_once(make: Make) -> None:
    """Older than the hour, from the future, from 2099, without a timestamp, before 1970, and at the very ends of the hour."""
    pipeline = make()
    last_millisecond = milliseconds(at(11)) - 1
    times = [-1, IN_2099, 10, 10.5, 3, -1, -86_400_000, last_millisecond, milliseconds(at(11)), 10.9, IN_2099, -1, 11.5, 12]
    pipeline.send([(time, b"record %d" % number) for number, time in enumerate(times)])
    pipeline.send([(-1, b"no time"), (-1, b"none either")], partition=1)
    assert states(pipeline.load(10, 11)) == [LoadState.COMMITTED] * 2
    assert pipeline.found() == pipeline.expected()
    assert len(pipeline.found()) == len(times) - 1 + 2, "all but the record of twelve o'clock"
    assert pipeline.hours_of(0, 4, 7, 8, 11) == [at(10), at(10), at(10), at(11), at(11)]
    assert [pipeline.audit(number).problems for number in (10, 11)] == [(), ()]


def test_partitions_added_between_hours_lose_and_repeat_nothing(make: Make) -> None:
    pipeline = make(partitions=1)
    pipeline.send([(10, b"a"), (11, b"b")])
    pipeline.load(10)
    pipeline.add_partitions(3)
    pipeline.send([(10.5, b"late"), (11.5, b"c"), (12.5, b"d")], partition=2)
    pipeline.register()
    assert states(pipeline.load(11, 12)) == [LoadState.COMMITTED] * 2
    assert pipeline.found() == pipeline.expected()
    assert len(pipeline.found()) == 5


def test_a_topic_made_again_while_it_is_read_fails_the_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same offsets, other records: only the topic's id gives it away."""
    pipeline = make(partitions=1)
    sent = [(10 + number / 1000, b"first %d" % number) for number in range(900)]
    pipeline.send(sent)
    pipeline.load(10)
    before = pipeline.found()

    def make_again() -> None:
        pipeline.create_again()
        pipeline.send([(time, b"second") for time, _ in sent])

    disturb_the_reading(monkeypatch, make_again)
    assert states(pipeline.load(10, freeze=False)) == [LoadState.FAILED]
    assert pipeline.found() == before
    (again,) = pipeline.load(10, freeze=False)
    assert (again.state, "was deleted and recreated" in str(again.error)) == (LoadState.FAILED, True)


def test_retention_that_overtakes_a_load_fails_it_with_the_lost_range(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make(partitions=1)
    pipeline.send([(10 + number / 1000, b"record %d" % number) for number in range(900)])
    pipeline.freeze(10)
    monkeypatch.setattr(records, "read_lists", after(lambda: pipeline.delete_records(500), records.read_lists))
    (outcome,) = pipeline.load(10, freeze=False)
    assert (outcome.state, pipeline.found()) == (LoadState.FAILED, [])
    assert f"{pipeline.name}-0 [0, 900)" in str(outcome.error)


def after(disturb: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def disturbed(*arguments: Any, **options: Any) -> Any:
        disturb()
        return function(*arguments, **options)

    return disturbed


def test_a_broker_killed_while_it_is_read_costs_time_and_nothing_else(
    make: Make, broker: AnyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches are small, so that most records are still to come when the broker dies."""
    if not isinstance(broker, LogbusBroker):
        pytest.skip("kill -9 of our own broker")
    pipeline = make(partitions=1, client={"max.partition.fetch.bytes": 20_000, "queued.min.messages": 1})
    pipeline.send([(10 + number / 100_000, b"%d" % number + b"." * 100) for number in range(5_000)])

    def kill_and_start() -> None:
        broker.kill9()
        broker.start()

    disturb_the_reading(monkeypatch, kill_and_start)
    assert states(pipeline.load(10)) == [LoadState.COMMITTED]
    assert pipeline.found() == pipeline.expected()
    assert pipeline.audit(10).problems == ()


def test_holes_of_compaction_are_refused_until_they_are_declared_and_the_rest_is_loaded_exactly(
    make: Make, broker: AnyBroker
) -> None:
    compact = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
    pipeline = make(partitions=1, config=compact)
    for start in range(0, 1_500, 100):  # in batches smaller than a segment: the last segment is never compacted
        pipeline.send([(10 + number / 2_000, b"%d" % number + b"." * 1_200) for number in range(start, start + 100)])
    wait_until(lambda: len(read_partition(broker.bootstrap, pipeline.name)) < 1_400, what="the compaction")
    (refused,) = pipeline.load(10)
    assert (refused.state, pipeline.found()) == (LoadState.FAILED, [])
    assert '{"offset_gaps": true}' in str(refused.error)
    pipeline.settings["offset_gaps"] = True
    pipeline.register()
    assert states(pipeline.load(10)) == [LoadState.COMMITTED]
    assert pipeline.audit(10).problems == ()
    assert 0 < len(pipeline.found()) < 1_400
