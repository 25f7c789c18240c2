"""Which segments retention deletes, and how the broker drives it: in slices with other work in between, and by a clock that may be
wrong.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from logbus_broker.errors import OffsetOutOfRange, StorageError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.background_tasks import PAUSE_PER_SLICE
from logbus_broker.log.log_retention import SEGMENTS_PER_STEP, apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.producer_state import ENCODED_AT_ONCE_MAX, ProducerState, SentBatch
from logbus_broker.protocol.api import ApiKey

from tests.support.batches import NOW_MS, plain_batch
from tests.support.engine import Harness, batch
from tests.support.logs import FailingDisk, append, append_each, files_with, flush, open_log, read_all, segments_in
from tests.support.manual_clock import ManualClock

BATCH_BYTES = len(plain_batch())
NEVER = {"retention_ms": -1, "retention_bytes": -1}


def log_of(directory: Path, *timestamps: int, **config: int) -> PartitionLog:
    """One segment per timestamp, all flushed; the last one is active."""
    log = open_log(directory, segment_bytes=BATCH_BYTES, **{**NEVER, **config})
    for timestamp in timestamps:
        append(log, plain_batch(timestamp=timestamp))
    flush(log)
    return log


def test_segments_whose_youngest_record_is_too_old_are_deleted_from_the_front(tmp_path: Path) -> None:
    log = log_of(tmp_path, 100, 300, 200, 900, 950, retention_ms=500)
    assert apply_retention(log, 801) == 3, "a segment is as old as its youngest record, whatever came before it"
    assert log.log_start_offset == 3
    assert [record.offset for record in read_all(log)] == [3, 4]


def test_a_young_segment_keeps_the_old_ones_behind_it(tmp_path: Path) -> None:
    log = log_of(tmp_path, 100, 900, 100, 100, retention_ms=500)
    assert apply_retention(log, 1000) == 1


def test_a_segment_is_old_only_beyond_the_limit(tmp_path: Path) -> None:
    log = log_of(tmp_path, 100, 900, retention_ms=500)
    assert apply_retention(log, 600) == 0
    assert apply_retention(log, 601) == 1


def test_a_log_that_is_too_old_as_a_whole_becomes_empty_and_goes_on(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, 1, retention_ms=0)
    assert apply_retention(log, 10**15) == 1
    assert (log.log_start_offset, log.end_offset, log.flushed_offset) == (1, 2, 2)
    assert apply_retention(log, 10**15) == 0, "the sealed segment and the new one's name are not flushed yet"
    flush(log)
    assert apply_retention(log, 10**15) == 1
    assert (log.log_start_offset, log.end_offset, log.segments.size_bytes) == (2, 2, 0)
    assert apply_retention(log, 10**15) == 0
    log.close()
    again = open_log(tmp_path, clean=True, recovery_point=2)
    assert (again.log_start_offset, again.end_offset, again.offline_reason) == (2, 2, "")
    append(again, plain_batch())
    assert [record.offset for record in read_all(again)] == [2]


@pytest.mark.parametrize("timestamp", [-1, NOW_MS + 10**12])
def test_without_a_believable_timestamp_the_age_of_the_file_counts(tmp_path: Path, timestamp: int) -> None:
    log = log_of(tmp_path, timestamp, NOW_MS, retention_ms=500)
    os.utime(files_with(tmp_path, ".log")[0], ns=(0, (NOW_MS - 400) * 1_000_000))
    assert apply_retention(log, NOW_MS) == 0
    os.utime(files_with(tmp_path, ".log")[0], ns=(0, (NOW_MS - 600) * 1_000_000))
    assert apply_retention(log, NOW_MS) == 1


@pytest.mark.parametrize(("limit", "deleted"), [(0, 3), (1, 3), (2, 2), (3, 1), (4, 0), (100, 0)])
def test_deleting_by_size_never_goes_below_the_limit(tmp_path: Path, limit: int, deleted: int) -> None:
    log = log_of(tmp_path, 1, 1, 1, 1, retention_bytes=limit * BATCH_BYTES)
    assert apply_retention(log, 0) == deleted
    assert log.segments.size_bytes == (4 - deleted) * BATCH_BYTES


def test_segments_wholly_before_the_start_are_deleted_with_the_next_retention(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, 1, 1, 1)
    log.delete_before(2)
    assert log.log_start_offset == 2
    assert len(files_with(tmp_path, ".log")) == 4
    assert apply_retention(log, 0) == 2
    assert log.log_start_offset == 2


@pytest.mark.parametrize("offset", [-1, 5])
def test_the_start_moves_only_within_what_is_flushed(tmp_path: Path, offset: int) -> None:
    log = log_of(tmp_path, 1, 1, 1, 1)
    append(log, plain_batch())
    with pytest.raises(OffsetOutOfRange, match=f"cannot delete before offset {offset}"):
        log.delete_before(offset)


def test_deleted_files_are_renamed_at_once_and_removed_by_whoever_takes_them(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, 1, retention_bytes=0)
    assert apply_retention(log, 0) == 1
    assert segments_in(tmp_path) == [1]
    paths = log.take_removed_paths()
    assert {path.name for path in paths} == {
        f"00000000000000000000{suffix}.deleted" for suffix in (".log", ".index", ".timeindex", ".indexnote")
    }
    assert log.take_removed_paths() == []


def test_an_unflushed_segment_is_not_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=BATCH_BYTES, retention_bytes=0)
    append_each(log, 2)
    assert apply_retention(log, 0) == 0
    flush(log)
    assert apply_retention(log, 0) == 1


def test_a_disk_that_refuses_to_rename_keeps_the_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, segment_bytes=BATCH_BYTES, retention_bytes=0, filesystem=disk)
    append_each(log, 2)
    flush(log)
    disk.failing = {"rename"}
    with pytest.raises(StorageError, match="cannot delete old segments"):
        apply_retention(log, 0)
    disk.failing = set()
    assert [record.offset for record in read_all(log)] == [0, 1]


def test_a_deletion_that_is_refused_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append_each(log, 3)
    flush(log)
    renames = 0

    def rename(path: Path, target: Path) -> None:
        nonlocal renames
        renames += 1
        if renames == 2:
            raise OSError(5, "Input/output error")
        path.rename(target)

    disk.rename = rename  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot delete"):
        log.drop_first()
    log.drop_first()
    assert sorted(path.name for path in log.take_removed_paths()) == sorted(
        path.name for path in files_with(tmp_path, ".deleted")
    )
    assert len(files_with(tmp_path, ".deleted")) == 4


DAY_MS = 86_400_000
CHECK_MS = 300_000


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", segment_bytes="100", retention_ms=str(7 * DAY_MS))
    write_five(harness, "t")
    return harness


def write_five(broker: Harness, topic: str) -> None:
    """Five batches, a segment each."""
    for _ in range(5):
        broker.produce(batch(b"value" * 10, timestamp=broker.clock.now_ms()), topic)
        broker.flush()


def check_retention(broker: Harness) -> int:
    """Run one check, and return the log start offset."""
    broker.settle(after_ms=CHECK_MS)
    broker.flush()
    return broker.engine.partitions.get("t", 0).log_start_offset


@pytest.mark.parametrize("jump_ms", [365 * DAY_MS, DAY_MS, -DAY_MS, -365 * DAY_MS])
def test_a_clock_that_jumps_deletes_nothing(broker: Harness, jump_ms: int) -> None:
    broker.clock.jump_ms(jump_ms)
    assert [check_retention(broker) for _ in range(5)] == [0] * 5


def test_a_topic_that_nobody_writes_to_becomes_empty_in_its_time(broker: Harness) -> None:
    assert check_retention(broker) == 0
    broker.settle(after_ms=8 * DAY_MS)
    broker.flush()
    assert check_retention(broker) == 5
    assert broker.engine.partitions.get("t", 0).end_offset == 5


class SlowDisk(FileSystem):
    """Renaming a file takes a millisecond, once `clock` is set."""

    clock: ManualClock | None = None

    def rename(self, path: Path, target: Path) -> None:
        super().rename(path, target)
        if self.clock is not None:
            self.clock.advance_ms(1)


@pytest.fixture
def slow(tmp_path: Path) -> Harness:
    """Segments of one batch, all expired: three partitions of `many` have five each, the one of `long` has 21. Active segments
    are kept."""
    disk = SlowDisk()
    harness = Harness(tmp_path, filesystem=disk)
    harness.create("many", partitions=3, segment_bytes="100", retention_ms=str(DAY_MS))
    harness.create("long", segment_bytes="100", retention_ms=str(DAY_MS))
    for topic, index, count in (("many", 0, 5), ("many", 1, 5), ("many", 2, 5), ("long", 0, 21)):
        for _ in range(count):
            harness.produce(batch(b"value" * 10, timestamp=harness.clock.now_ms()), topic, index)
            harness.turn()
    harness.flush()
    harness.clock.advance_ms(2 * DAY_MS)
    disk.clock = harness.clock
    return harness


def starts(broker: Harness) -> list[int]:
    """The log start offsets."""
    return [partition.log_start_offset for partition in broker.engine.partitions if not partition.topic.startswith("_")]


def next_slice(broker: Harness) -> None:
    """Wait as long as the loop would, and give it one turn."""
    waits_ms = math.ceil((broker.engine.next_deadline() - broker.clock.monotonic()) * 1000)
    broker.clock.advance_ms(max(waits_ms, 0))
    broker.engine.end_turn()


def test_a_round_is_cut_into_slices_and_the_loop_is_free_between_them(slow: Harness) -> None:
    began = slow.clock.monotonic()
    slow.engine.end_turn()
    slice_seconds = slow.clock.monotonic() - began
    assert starts(slow) == [4, 0, 0, 0], "the next slice is for the others"
    slow.engine.end_turn()  # begins the flush of the segment that the round has sealed
    assert slow.engine.next_deadline() >= began + slice_seconds * (1 + PAUSE_PER_SLICE) - 0.001
    assert starts(slow) == [4, 0, 0, 0], "not before the pause is over"
    next_slice(slow)
    assert starts(slow) == [4, 4, 0, 0]


def test_a_long_log_is_cut_too_and_lets_the_others_go_first(slow: Harness) -> None:
    reached = []
    for _ in range(20):
        reached.append(starts(slow)[3])
        next_slice(slow)
    assert starts(slow) == [4, 4, 4, 20]
    assert sorted(set(reached)) == [0, SEGMENTS_PER_STEP, 2 * SEGMENTS_PER_STEP, 20]


def test_a_topic_that_is_deleted_during_a_round_is_left_out(slow: Harness, caplog: pytest.LogCaptureFixture) -> None:
    slow.engine.end_turn()
    slow.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["many"], timeout_ms=1000)
    for _ in range(10):
        next_slice(slow)
    assert starts(slow) == [20]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_unreadable_note_is_a_trouble_of_its_partition_until_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(FileSystem):
        path: Path | None = None

        def read_bytes(self, path: Path) -> bytes:
            if path == self.path:
                raise PermissionError(13, "Permission denied", str(path))
            return super().read_bytes(path)

    disk = Unreadable()
    broker = Harness(tmp_path, filesystem=disk)
    for topic in ("t", "other"):
        broker.create(topic, segment_bytes="100", retention_ms=str(7 * DAY_MS))
        write_five(broker, topic)
    broker.close()
    broker = Harness(tmp_path, filesystem=disk)
    disk.path = tmp_path / "t-0" / "00000000000000000000.indexnote"
    broker.clock.advance_ms(8 * DAY_MS)
    for _ in range(3):
        check_retention(broker)
    assert starts(broker) in ([0, 5], [5, 0])
    assert list(broker.engine.health.troubles) == ["retention of t-0"]
    assert broker.engine.health.defects == 0
    assert len([record for record in caplog.records if "retention of t-0" in record.getMessage()]) == 1
    disk.path = None
    for _ in range(3):
        check_retention(broker)
    assert starts(broker) == [5, 5]
    assert broker.engine.health.troubles == {}


def test_the_trouble_of_a_partition_that_is_deleted_is_forgotten(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("logbus_broker.log.log_retention.apply_retention", refused)
    check_retention(broker)
    assert list(broker.engine.health.troubles) == ["retention of t-0"]
    broker.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["t"], timeout_ms=1000)
    broker.settle(after_ms=CHECK_MS)
    assert broker.engine.health.troubles == {}


def test_nothing_is_deleted_while_the_snapshot_of_many_producers_is_written(broker: Harness) -> None:
    """The records may be the only place that tells what their producers have sent."""
    partition = broker.engine.partitions.get("t", 0)
    sent = SentBatch(0, 0, 0, 0, 0)
    partition.producers.restore({number: ProducerState(0, (sent,)) for number in range(2 * ENCODED_AT_ONCE_MAX)})
    broker.clock.advance_ms(8 * DAY_MS)
    broker.clock.tick_ms = 4  # a slice of a task is over after a step
    partition.log.roll()
    assert partition.producer_snapshots.is_saving
    retention = broker.engine._retention
    retention.work(broker.clock.monotonic())
    assert partition.log_start_offset == 0
    broker.clock.tick_ms = 0
    broker.settle()
    assert not partition.producer_snapshots.is_saving
    check_retention(broker)
    assert check_retention(broker) == 5
    broker.close()
