"""A fetch of more partitions than are read in one turn: answered like a small one, with turns for others in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.fetch import READ_AT_ONCE_MAX
from broker.handlers.reply import Pending
from broker.protocol.api import ApiKey
from broker.records.reader import read_records
from tests.support.batches import NOW_MS, plain_batch
from tests.support.engine import Harness, batch
from tests.support.two_fetch_lanes import PLENTY, fetch_frame
from tests.support.two_lanes import Rivals, produce_frame
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_body

MANY = READ_AT_ONCE_MAX + 200
PARTITIONS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    """Reading the clock takes a millisecond, so a slice has few steps."""
    harness = Harness(tmp_path)
    harness.create("clicks", PARTITIONS)
    harness.clock.tick_ms = 1
    yield harness
    harness.close()


def write(broker: Harness, index: int) -> None:
    broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", index): batch(b"a")}))
    broker.turn()


def fetch(broker: Harness, *wanted: Wanted, **limits: int) -> Pending:
    pending = broker.dispatch(ApiKey.FETCH, 12, fetch_body(*wanted, **limits))
    assert isinstance(pending, Pending)
    assert pending.stops_reading
    return pending


def wanted(count: int = MANY) -> list[Wanted]:
    return [Wanted(topic="clicks", index=number % PARTITIONS) for number in range(count)]


def turns_until_parked(broker: Harness) -> int:
    turns = 0
    while not len(broker.engine.context.purgatory):
        turns += 1
        broker.turn()
    return turns


def rows_of(broker: Harness, pending: Pending) -> list[Any]:
    return [row for topic in fetch_answer(broker.bytes_of(pending)).responses for row in topic.partitions]


def test_others_have_their_turns_and_the_answer_is_the_same(broker: Harness) -> None:
    write(broker, 0)
    write(broker, 1)
    broker.flush()
    pending = fetch(broker, *wanted(), Wanted(topic="absent"))
    assert broker.turns_until_helped() > 3
    assert not pending.done, "a helper encodes the answer"
    rows = rows_of(broker, pending)
    assert [row.partition_index for row in rows] == [number % PARTITIONS for number in range(MANY)] + [0]
    assert [row.error_code for row in rows] == [0] * MANY + [3]
    for row in rows[:-1]:
        found = [record.value for record in read_records(bytes(row.records))] if row.records else []
        assert found == ([b"a"] if row.partition_index < 2 else [])


def test_it_waits_for_records_and_is_answered_with_them(broker: Harness) -> None:
    pending = fetch(broker, *wanted(), wait_ms=100_000)
    assert turns_until_parked(broker) > 1
    broker.settle()
    assert not pending.done
    write(broker, 2)
    broker.flush()
    rows = rows_of(broker, pending)
    assert [bool(row.records) for row in rows] == [row.partition_index == 2 for row in rows]
    assert len(broker.engine.context.purgatory) == 0


def test_it_is_answered_empty_at_its_deadline(broker: Harness) -> None:
    pending = fetch(broker, *wanted(), wait_ms=500)
    turns_until_parked(broker)
    broker.clock.advance_ms(500)
    assert not any(row.records for row in rows_of(broker, pending))


@pytest.mark.parametrize("parked", [True, False])
def test_a_client_that_leaves_leaves_nothing_behind(broker: Harness, parked: bool) -> None:
    pending = fetch(broker, *wanted(), wait_ms=1 << 30)
    if parked:
        turns_until_parked(broker)
    pending.cancel()
    broker.settle()
    assert len(broker.engine.context.purgatory) == 0
    assert len(broker.engine.chores) == 0


@pytest.mark.parametrize("index", [0, 1])
def test_the_lane_leaves_it_to_the_ordinary_path_if_there_are_records_for_all(tmp_path: Path, index: int) -> None:
    """Where there are none, it costs little."""
    rivals = Rivals(tmp_path)
    rivals.feed(1, produce_frame(9, 1, [(b"plain", [(0, bytes(plain_batch(1, timestamp=NOW_MS)))])]))
    rivals.turn()
    rivals.do(lambda harness: harness.flush())
    frame = fetch_frame(11, 7, [(b"plain", [(index, -1, 0, PLENTY)] * MANY)], lambda topic: b"")
    for _ in range(3):
        rivals.feed(2, frame)
        for _ in range(3):
            rivals.turn()
    rivals.compare()
    assert len(rivals.on.sockets[2].sent) > 3 * 40 * MANY
    assert rivals.on.fetches_taken == (0 if index == 0 else 2)
    rivals.close()
