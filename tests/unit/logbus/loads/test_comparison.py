from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from logbus.errors import TopicRecreated, WindowUnknown
from logbus.loads.history import ComparedPartition, WindowHistory, WindowReading, broker_reading, compare, loaded_reading
from logbus.model import OffsetRange

from tests.support.fake_ledger import window
from tests.support.fake_log import FakeLog

START = datetime(2015, 5, 17, 10, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """A message as a consumer returns it."""

    at: int

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return f"line {self.at}".encode()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None


@pytest.fixture
def log() -> FakeLog:
    found = FakeLog.of("access_log", range(20))
    found.ids["access_log"] = "t"
    return found


def read_all(part: OffsetRange) -> Iterable[Record]:
    return (Record(at) for at in range(part.start_offset, part.end_offset))


def read(log: FakeLog, missing: frozenset[int] = frozenset()) -> WindowReading:
    """Offsets 5 to 15 of the fake broker's partition 0, without the missing ones."""
    return broker_reading(window(START), log, lambda part: (record for record in read_all(part) if record.at not in missing))


def test_the_same_records_read_twice_are_the_same(log: FakeLog) -> None:
    assert compare(read(log), read(log)) == []
    assert read(log).read == 10


def test_what_retention_took_is_named_by_its_offsets(log: FakeLog) -> None:
    before = read(log)
    log.delete_records("access_log", before_offset=8)
    found = {difference.what: (difference.left, difference.right) for difference in compare(before, read(log))}
    assert found["records"] == (10, 7)
    assert found["partition 0 offsets without a record"] == ([], [[5, 8]])


def test_holes_in_the_middle_and_at_the_end_are_named(log: FakeLog) -> None:
    found = {difference.what: difference.right for difference in compare(read(log), read(log, frozenset({7, 8, 14})))}
    assert found["partition 0 offsets without a record"] == [[7, 9], [14, 15]]


def test_a_window_whose_records_are_all_gone_reads_as_none(log: FakeLog) -> None:
    log.delete_records("access_log", before_offset=20)
    found = read(log)
    assert (found.read, found.partitions and found.partitions[0].holes) == (0, ((5, 15),))


def test_the_same_offsets_in_a_topic_made_again_are_other_records(log: FakeLog) -> None:
    log.ids["access_log"] = "another"
    with pytest.raises(TopicRecreated):
        read(log)


def test_readings_without_partitions_are_compared_by_their_sums() -> None:
    part = ComparedPartition(range=(0, 2), read=2, fingerprint="a")
    left = WindowReading(name="left", read=2, fingerprint="a", partitions=None, results={"loaded": 2})
    right = WindowReading(name="right", read=2, fingerprint="b", partitions={0: part}, results={"loaded": 1, "filtered": 1})
    assert [difference.what for difference in compare(left, right)] == ["fingerprint", "loaded"]


def test_a_window_that_is_not_loaded_has_nothing_to_compare() -> None:
    empty = WindowHistory(window=window(START), attempts=(), spans={}, dead_letters={}, redrives=(), audit_problems=())
    with pytest.raises(WindowUnknown, match="not loaded"):
        loaded_reading(empty)
