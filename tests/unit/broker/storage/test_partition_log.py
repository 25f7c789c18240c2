from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.errors import OffsetOutOfRange, StorageError
from broker.records.reader import read_records
from broker.storage.retention import apply_retention
from tests.support.batches import NOW_MS, plain_batch
from tests.support.logs import FailingDisk, append, files_with, flush, headers_from, located_bytes, open_log, read_all
from tests.support.manual_clock import ManualClock


def test_one_append_is_one_write_call(tmp_path: Path) -> None:
    class Counting(FailingDisk):
        writes = 0

        def write_some(self, *arguments: object) -> int:  # type: ignore[override]
            Counting.writes += 1
            return super().write_some(*arguments)  # type: ignore[arg-type]

    log = open_log(tmp_path, filesystem=Counting())
    append(log, plain_batch())  # the first batch of an epoch also writes the epoch
    Counting.writes = 0
    append(log, *[plain_batch() for _ in range(50)])
    assert Counting.writes == 1


def test_readers_that_keep_up_cost_no_look_into_the_files(tmp_path: Path) -> None:
    class Counting(FailingDisk):
        reads = 0

        def read_at(self, *arguments: object) -> bytes:  # type: ignore[override]
            Counting.reads += 1
            return super().read_at(*arguments)  # type: ignore[arg-type]

    log = open_log(tmp_path, filesystem=Counting())
    append(log, plain_batch(5))
    for _ in range(2):
        log.locate(0, 1 << 20, upto_offset=5).release()
    Counting.reads = 0
    for offset in range(5, 500, 5):
        append(log, batch := plain_batch(5))
        pieces = [log.locate(offset, 1 << 20, upto_offset=log.end_offset) for _ in range(2)]
        assert [piece.length for piece in pieces] == [len(batch)] * 2
    assert Counting.reads == 0


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
    assert [path.name for path in files_with(tmp_path, ".log")] == [
        "00000000000000000000.log",
        "00000000000000000010.log",
        "00000000000000000020.log",
    ]
    assert log.size_bytes == 5 * size
    assert located_bytes(log, 7, 1 << 20, upto_offset=25) == batches[1], "one segment at a time"
    assert [record.offset for record in read_all(log)] == list(range(25))


def test_a_turn_larger_than_a_segment_stays_together(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append(log, *[plain_batch() for _ in range(10)])
    append(log, plain_batch())
    assert [path.name for path in files_with(tmp_path, ".log")] == ["00000000000000000000.log", "00000000000000000010.log"]


def test_a_segment_rolls_when_its_records_span_the_configured_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, roll_ms=1_000)
    for timestamp in (5_000, 6_000, 6_001):
        append(log, plain_batch(timestamp=timestamp))
    assert [path.name for path in files_with(tmp_path, ".log")] == ["00000000000000000000.log", "00000000000000000002.log"]


def test_a_segment_of_records_without_time_rolls_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, roll_ms=1_000, clock=clock)
    for _ in range(3):
        append(log, plain_batch(timestamp=-1))
        clock.advance_ms(600)
    assert [path.name for path in files_with(tmp_path, ".log")] == ["00000000000000000000.log", "00000000000000000002.log"]


def test_a_segment_that_cannot_be_made_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append(log, plain_batch())
    disk.failing = {"create"}
    with pytest.raises(StorageError, match="cannot begin a new segment"):
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
    with pytest.raises(StorageError, match="nor take the write back"):
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
    for _ in range(10):
        append(log, plain_batch(5))
    assert [header.base_offset for header in headers_from(log, 0)] == list(range(0, 50, 5))
    assert [header.base_offset for header in headers_from(log, 23)] == [20, 25, 30, 35, 40, 45]
    assert [next(read_records(batch)).offset for batch in log.batches_from(30)] == [30, 35, 40, 45]
    assert list(headers_from(log, 50)) == []


def test_the_recent_part_of_a_log_begins_with_the_oldest_segment_written_to_lately(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    for _ in range(4):
        append(log, plain_batch())
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
    for _ in range(10):
        append(log, plain_batch(5, timestamp=NOW_MS))
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
    for _ in range(40):
        append(log, plain_batch())
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
