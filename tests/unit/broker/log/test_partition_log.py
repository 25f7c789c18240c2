from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from logbus_broker.errors import OffsetOutOfRange, StorageError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.leader_epochs import LEADER_EPOCHS
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment_index import RELATIVE_OFFSET_MAX
from logbus_broker.protocol.batch import Buffer
from logbus_broker.protocol.records import read_records
from logbus_broker.protocol.validation import split_replicated

from tests.support.batches import NOW_MS, plain_batch, stamped
from tests.support.logs import (
    CountingDisk,
    FailingDisk,
    append,
    append_each,
    files_with,
    flush,
    headers_from,
    located_bytes,
    open_log,
    read_all,
    segments_in,
)
from tests.support.manual_clock import ManualClock


def test_one_append_is_one_write_call(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, filesystem=disk)
    append(log, plain_batch())  # the first batch of an epoch also writes the epoch
    disk.writes.clear()
    append(log, *[plain_batch() for _ in range(50)])
    assert len(disk.writes) == 1


def test_readers_that_keep_up_cost_no_look_into_the_files(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, filesystem=disk)
    append(log, plain_batch(5))
    for _ in range(2):
        log.locate(0, 1 << 20, upto_offset=5).release()
    disk.reads.clear()
    for offset in range(5, 500, 5):
        append(log, batch := plain_batch(5))
        pieces = [log.locate(offset, 1 << 20, upto_offset=log.end_offset) for _ in range(2)]
        assert [piece.length for piece in pieces] == [len(batch)] * 2
    assert disk.reads == []


@pytest.mark.parametrize("offset", [-1, 4, 21, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    append(log, *[plain_batch(5) for _ in range(4)])
    flush(log)
    log.delete_before(5)
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is not within 5 to 20"):
        log.locate(offset, 100, upto_offset=20)


def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    size = len(plain_batch(5))
    log = open_log(tmp_path, segment_bytes=2 * size)
    batches = [plain_batch(5) for _ in range(5)]
    for batch in batches:
        append(log, batch)
    assert segments_in(tmp_path) == [0, 10, 20]
    assert log.segments.size_bytes == 5 * size
    assert located_bytes(log, 7, 1 << 20, upto_offset=25) == batches[1], "one segment at a time"
    assert [record.offset for record in read_all(log)] == list(range(25))


def test_a_turn_larger_than_a_segment_stays_together(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append(log, *[plain_batch() for _ in range(10)])
    append(log, plain_batch())
    assert segments_in(tmp_path) == [0, 10]


def test_a_segment_rolls_when_its_records_span_the_configured_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, roll_ms=1_000)
    for timestamp in (5_000, 6_000, 6_001):
        append(log, plain_batch(timestamp=timestamp))
    assert segments_in(tmp_path) == [0, 2]


def test_a_segment_of_records_without_time_rolls_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, roll_ms=1_000, clock=clock)
    for _ in range(3):
        append(log, plain_batch(timestamp=-1))
        clock.advance_ms(600)
    assert segments_in(tmp_path) == [0, 2]


def test_a_segment_that_cannot_be_made_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append(log, plain_batch())
    disk.failing = {"create"}
    with pytest.raises(StorageError, match="cannot create a new segment"):
        append(log, plain_batch())
    assert log.end_offset == 1
    disk.failing = set()
    append(log, plain_batch())
    assert [record.offset for record in read_all(log)] == [0, 1]


def test_a_write_that_cannot_be_taken_back_takes_the_log_offline(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    append(log, plain_batch())
    disk.writable_bytes = 10
    disk.failing = {"truncate"}
    with pytest.raises(StorageError):
        append(log, plain_batch())
    disk.writable_bytes, disk.failing = None, set()
    with pytest.raises(StorageError, match="nor undo the write"):
        append(log, plain_batch())


def test_an_offline_log_refuses_everything(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, plain_batch())
    flush(log)
    log.abandon("the reason")
    for call in (
        lambda: append(log, plain_batch()),
        log.begin_flush,
        lambda: log.locate(0, 1, upto_offset=1),
        lambda: log.search_by_time(0, upto_offset=1),
        lambda: list(log.batches_from(0)),
        lambda: apply_retention(log, 0),
        lambda: log.delete_before(0),
        log.close,
    ):
        with pytest.raises(StorageError, match="the reason"):
            call()


def test_headers_and_batches_are_walked_from_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    append_each(log, 10, 5)
    assert [header.base_offset for header in headers_from(log, 0)] == list(range(0, 50, 5))
    assert [header.base_offset for header in headers_from(log, 23)] == [20, 25, 30, 35, 40, 45]
    assert [next(read_records(batch)).offset for batch in log.batches_from(30)] == [30, 35, 40, 45]
    assert list(headers_from(log, 50)) == []


def test_the_recent_part_of_a_log_begins_with_the_oldest_segment_written_to_lately(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append_each(log, 4)
    files = files_with(tmp_path, ".log")
    for path, age_ms in zip(files, (5_000, 2_000, 1_000, 0), strict=True):
        os.utime(path, ns=(0, (NOW_MS - age_ms) * 1_000_000))
    assert [log.recent_offset(age_ms) for age_ms in (500, 1_500, 2_500, 10_000)] == [3, 2, 1, 0]


def test_a_log_that_nobody_wrote_to_is_closed_without_a_flush(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    append(log, plain_batch())
    flush(log)
    disk.failing = {"sync_data", "sync_directory"}
    log.close()
    log = open_log(tmp_path, filesystem=disk, clean=True, recovery_point=1)
    disk.failing.add("write_bytes")
    log.close()
    assert log.flushed_offset == 1


def test_a_stop_that_cannot_flush_says_so_and_promises_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    append(log, plain_batch())
    disk.failing = {"sync_data"}
    with pytest.raises(StorageError, match="cannot flush"):
        log.close()
    assert log.flushed_offset == 0


def test_a_closed_log_opens_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    append_each(log, 10, 5, timestamp=NOW_MS)
    records = read_all(log)
    log.close()
    log = open_log(tmp_path, segment_bytes=300, clean=True, recovery_point=50)
    assert log.recovery.was_clean
    assert log.recovery.checked_bytes == 0
    assert (log.end_offset, log.flushed_offset) == (50, 50)
    assert read_all(log) == records
    append(log, plain_batch())
    assert log.end_offset == 51


def test_a_read_piece_outlives_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100, retention_bytes=0)
    append(log, first := plain_batch())
    append(log, plain_batch())
    flush(log)
    piece = log.locate(0, 1 << 20, upto_offset=2)
    assert apply_retention(log, NOW_MS) == 1
    for path in log.take_removed_paths():
        path.unlink()
    append(log, plain_batch())
    assert os.pread(piece.fileno(), piece.length, piece.position) == first
    descriptor = piece.fileno()
    piece.release()
    piece.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_few_sealed_segments_stay_open_however_many_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append_each(log, 40)
    flush(log)
    before = len(os.listdir("/proc/self/fd"))
    for offset in range(40):
        log.locate(offset, 1, upto_offset=40).release()
        log.search_by_time(NOW_MS, upto_offset=40).run()
    assert len(os.listdir("/proc/self/fd")) - before <= 4


def test_damage_found_while_reading_is_a_storage_error(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, plain_batch(), plain_batch(), plain_batch())
    with open(tmp_path / "00000000000000000000.log", "r+b") as file:
        file.seek(len(plain_batch()))
        file.write(bytes(61))
    with pytest.raises(StorageError, match="the file is damaged"):
        log.locate(2, 100, upto_offset=3)
    with pytest.raises(StorageError, match="the file is damaged"):
        list(headers_from(log, 0))


def sent(*places: tuple[int, int]) -> memoryview:
    """Batches of five records with these offsets and epochs."""
    return memoryview(b"".join(bytes(stamped(plain_batch(5), base_offset, epoch)[0]) for base_offset, epoch in places))


def take(log: PartitionLog, view: memoryview) -> None:
    log.append_replica(view, split_replicated(view, log.end_offset, 99, log.epochs.written.latest))


def stored(log: PartitionLog) -> bytes:
    return b"".join(log.batches_from(log.log_start_offset))


def test_a_leaders_bytes_are_stored_unchanged_in_one_write(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, filesystem=disk, is_replica=True)
    view = sent((0, 3), (5, 3), (10, 4))
    take(log, view)
    assert disk.writes == [1]
    assert stored(log) == bytes(view)
    assert (log.end_offset, log.flushed_offset) == (15, 0)


@pytest.mark.parametrize("clean", [True, False])
def test_gaps_are_kept_through_a_restart_and_every_offset_is_found(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((3, 0), (20, 0)))
    take(log, sent((40, 1)))
    flush(log)
    if clean:
        log.close()
    again = open_log(tmp_path, clean=clean, recovery_point=45, is_replica=True)
    assert (again.offline_reason, again.end_offset) == ("", 45)
    first = [located_bytes(again, offset, 1, upto_offset=45) for offset in (0, 8, 24, 25, 44)]
    assert first == [bytes(sent(batch)) for batch in ((3, 0), (20, 0), (20, 0), (40, 1), (40, 1))]


def test_a_gap_in_the_active_segment_of_a_broker_that_is_alone_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((0, 0), (20, 0)))
    assert open_log(tmp_path).end_offset == 5


def test_a_new_segment_begins_where_the_log_ended_also_before_a_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200, is_replica=True)
    for offset in (0, 10, 30):
        take(log, sent((offset, 0)))
    assert segments_in(tmp_path) == [0, 5, 15]
    again = open_log(tmp_path, segment_bytes=200, is_replica=True)
    assert (again.end_offset, again.recovery.reason) == (35, "")


def test_a_leader_epoch_is_noted_where_its_first_batch_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((0, 2), (5, 2), (10, 4)))
    take(log, sent((15, 4), (20, 7)))
    assert log.epochs.written.entries == [(2, 0), (4, 10), (7, 20)]
    assert log.epochs.current == 7
    assert [log.end_of_epoch(epoch) for epoch in (1, 2, 3, 4, 6, 7, 8)] == [
        (1, 0),
        (2, 10),
        (2, 10),
        (4, 20),
        (4, 20),
        (7, 25),
        (-1, -1),
    ]


def test_a_start_does_not_raise_the_epoch_of_a_replica_and_believes_the_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((0, 2), (5, 6)))
    again = open_log(tmp_path, is_replica=True)
    assert not again.recovery.was_clean
    assert (again.epochs.current, again.epochs.written.entries) == (6, [(2, 0), (6, 5)])


def test_an_assigned_epoch_is_known_at_once_and_written_by_the_flush_of_its_first_record(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, is_replica=True)
    take(log, sent((0, 2)))
    flush(log)
    disk.calls.clear()
    log.epochs.begin(9)
    assert [log.end_of_epoch(epoch) for epoch in (2, 8, 9)] == [(2, 5), (2, 5), (9, 5)]
    assert disk.calls == [], "the loop waits for no disk"
    view, header = stamped(plain_batch(5), 5, 9)
    log.append([view], [header])
    flush(log)
    assert open_log(tmp_path, recovery_point=10, is_replica=True).epochs.written.entries == [(2, 0), (9, 5)]


class WritesMeanwhile(FileSystem):
    """Calls `meanwhile` once while the epochs are being written."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None

    def write_bytes(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        super().write_bytes(path, data, durable=durable)
        if path.name.startswith(LEADER_EPOCHS):
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            meanwhile()


def test_an_epoch_that_begins_while_the_file_is_written_is_written_by_the_next_flush(tmp_path: Path) -> None:
    disk = WritesMeanwhile()
    log = open_log(tmp_path, filesystem=disk, is_replica=True)
    take(log, sent((0, 2)))
    disk.meanwhile = lambda: take(log, sent((5, 3)))
    flush(log)
    assert not log.epochs.is_saved
    flush(log)
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n2\n2 0\n3 5\n"


def test_an_epoch_in_which_nothing_was_written_ends_where_the_one_before_it_did_and_costs_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((0, 2)))
    flush(log)
    log.epochs.begin(3)
    log.epochs.begin(4)
    assert [log.end_of_epoch(epoch) for epoch in (2, 3, 4, 5)] == [(2, 5), (2, 5), (4, 5), (-1, -1)]
    assert log.epochs.is_saved
    take(log, sent((5, 6)))
    assert log.epochs.written.entries == [(2, 0), (6, 5)]


@pytest.mark.parametrize("bytes_per_write", [None, 50])
def test_a_write_that_the_disk_refuses_leaves_the_log_as_it_was(tmp_path: Path, bytes_per_write: int | None) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, is_replica=True)
    take(log, sent((0, 1)))
    disk.bytes_per_write, disk.writable_bytes = bytes_per_write, 100
    with pytest.raises(StorageError, match=f"Errno {errno.ENOSPC}"):
        take(log, sent((5, 1), (10, 1)))
    disk.writable_bytes = None
    assert (log.offline_reason, log.end_offset, stored(log)) == ("", 5, bytes(sent((0, 1))))
    take(log, sent((5, 1)))
    assert log.end_offset == 10


def test_gaps_that_no_single_segment_can_hold_are_spread_over_several(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1, is_replica=True)
    far = [RELATIVE_OFFSET_MAX - 10, 2 * RELATIVE_OFFSET_MAX, 4 * RELATIVE_OFFSET_MAX - 10, 4 * RELATIVE_OFFSET_MAX]
    take(log, sent(*((offset, 0) for offset in (0, 5, *far))))
    assert log.end_offset == far[-1] + 5
    assert [header.base_offset for header in headers_from(log, 0)] == [0, 5, *far]
    assert len(log.segments) > 2
    again = open_log(tmp_path, index_interval_bytes=1, is_replica=True)
    assert (again.offline_reason, again.end_offset) == ("", log.end_offset)
