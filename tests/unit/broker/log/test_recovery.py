from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import OpenFile
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, Buffer

from tests.support.batches import NOW_MS, altered, plain_batch, stamped
from tests.support.logs import (
    FailingDisk,
    append,
    append_each,
    begun_flush,
    files_with,
    flush,
    open_log,
    open_segments,
    read_all,
    segments_in,
)

FIRST = "00000000000000000000.log"
BATCH_BYTES = len(plain_batch(5))


def written_log(directory: Path, batches: int = 4, **config: int) -> PartitionLog:
    """A log of batches of five records, flushed as a whole."""
    log = open_log(directory, **config)
    append_each(log, batches, 5)
    flush(log)
    return log


def cut(data: bytearray) -> bytes:
    return bytes(data[:-1])


def cut_within_a_header(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES + 30])


def zero_filled(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES]) + bytes(5000)


def partly_zero_filled(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES + BATCH_HEADER_BYTES]) + bytes(BATCH_BYTES - BATCH_HEADER_BYTES)


def flipped(data: bytearray) -> bytes:
    data[-3] ^= 0x10
    return bytes(data)


def length_flipped(data: bytearray) -> bytes:
    data[3 * BATCH_BYTES + 8] = 0x7F
    return bytes(data)


def garbage_behind(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES]) + b"\xa5" * 700


def a_batch_of_another_place(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES]) + bytes(stamped(plain_batch(5), 99)[0])


def a_batch_that_lies_about_its_records(data: bytearray) -> bytes:
    return bytes(data[: 3 * BATCH_BYTES]) + bytes(stamped(altered(plain_batch(5), last_offset_delta=-3), 15)[0])


TORN_TAILS = [
    cut,
    cut_within_a_header,
    zero_filled,
    partly_zero_filled,
    flipped,
    length_flipped,
    garbage_behind,
    a_batch_of_another_place,
    a_batch_that_lies_about_its_records,
]


@pytest.mark.parametrize("tear", TORN_TAILS)
def test_recovery_truncates_a_torn_tail_behind_the_last_whole_batch(tmp_path: Path, tear: Callable[[bytearray], bytes]) -> None:
    written_log(tmp_path)
    file = tmp_path / FIRST
    good = file.read_bytes()
    torn = tear(bytearray(good))
    file.write_bytes(torn)
    log = open_log(tmp_path, recovery_point=15)
    assert (log.end_offset, log.flushed_offset) == (15, 15)
    assert log.recovery.truncated_bytes == len(torn) - 3 * BATCH_BYTES
    assert FIRST in log.recovery.reason
    assert file.read_bytes() == good[: 3 * BATCH_BYTES]
    append(log, plain_batch(5))
    assert [record.offset for record in read_all(log)] == list(range(20))


def test_recovery_checks_only_what_lies_behind_the_recovery_point(tmp_path: Path) -> None:
    written_log(tmp_path)
    log = open_log(tmp_path, recovery_point=15)
    assert log.recovery.checked_bytes == BATCH_BYTES


def test_recovery_flushes_what_it_keeps_before_anybody_sees_it(tmp_path: Path) -> None:
    written_log(tmp_path)
    disk = FailingDisk()
    disk.failing = {"sync_data"}
    log = open_log(tmp_path, filesystem=disk)
    with pytest.raises(StorageError, match="sync_data"):
        log.locate(0, 1, upto_offset=1)


# Checksums below the recovery point are not verified, since a start must not read the whole log. `verify` does that.
@pytest.mark.parametrize("tear", [tear for tear in TORN_TAILS if tear not in (flipped, partly_zero_filled)])
def test_damage_below_the_recovery_point_keeps_the_partition_offline_and_the_files_as_they_are(
    tmp_path: Path, tear: Callable[[bytearray], bytes]
) -> None:
    written_log(tmp_path)
    file = tmp_path / FIRST
    torn = tear(bytearray(file.read_bytes()))
    file.write_bytes(torn)
    log = open_log(tmp_path, recovery_point=20)
    with pytest.raises(StorageError, match="batches up to offset 20 had been flushed, but the log ends at 15"):
        append(log, plain_batch())
    assert file.read_bytes() == torn
    assert log.end_offset == 20, "an offline log does not pretend to be shorter than it was"


def test_a_partition_whose_files_are_gone_is_offline(tmp_path: Path) -> None:
    log = open_log(tmp_path, recovery_point=7)
    with pytest.raises(StorageError, match="no segment, but records up to offset 7 had been flushed"):
        log.locate(0, 1, upto_offset=1)
    assert files_with(tmp_path, ".log") == []


def test_segments_behind_a_torn_one_are_removed(tmp_path: Path) -> None:
    written_log(tmp_path, segment_bytes=BATCH_BYTES)
    with open(tmp_path / "00000000000000000010.log", "r+b") as file:
        file.truncate(BATCH_BYTES - 9)
    log = open_log(tmp_path, recovery_point=10, segment_bytes=BATCH_BYTES)
    assert (log.end_offset, log.recovery.removed_segments) == (10, 1)
    assert log.recovery.truncated_bytes == 2 * BATCH_BYTES - 9
    append(log, plain_batch(5))
    assert [record.offset for record in read_all(log)] == list(range(15))
    assert segments_in(tmp_path) == [0, 5, 10]


def test_a_segment_that_does_not_follow_is_removed(tmp_path: Path) -> None:
    written_log(tmp_path, segment_bytes=BATCH_BYTES)
    (tmp_path / "00000000000000000015.log").rename(tmp_path / "00000000000000000017.log")
    log = open_log(tmp_path, recovery_point=10)
    assert log.end_offset == 15
    assert "does not begin at offset 15" in log.recovery.reason


def test_a_clean_stop_whose_file_is_torn_after_all_is_recovered(tmp_path: Path) -> None:
    written_log(tmp_path).close()
    with open(tmp_path / FIRST, "ab") as file:
        file.write(b"garbage")
    log = open_log(tmp_path, clean=True, recovery_point=20)
    assert (log.end_offset, log.recovery.was_clean, log.recovery.truncated_bytes) == (20, False, 7)


def test_a_clean_stop_whose_file_is_too_short_is_damage(tmp_path: Path) -> None:
    written_log(tmp_path).close()
    with open(tmp_path / FIRST, "r+b") as file:
        file.truncate(3 * BATCH_BYTES)
    log = open_log(tmp_path, clean=True, recovery_point=20)
    with pytest.raises(StorageError, match="had been flushed"):
        log.locate(0, 1, upto_offset=1)


def test_leftovers_of_a_stop_in_the_middle_are_removed_and_files_of_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written_log(tmp_path)
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "partition.metadata.tmp",
        "00000000000000000077.index",
        "00000000000000000077.timeindex",
    ):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "partition.metadata").write_bytes(b"kept")
    foreign = {
        *("notes.log.swap", "old.log.deleted", "notes.tmp", "x.cleaned", "0.log", "5.index", "²²²²²²²²²²²²²²²²²²²².index"),
        *("7.snapshot", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log", f"{9:020d}-007.cut", f"{'9' * 20}.log", f"{5:020d}.log.swap.bak"),
    }
    for name in foreign:
        (tmp_path / name).write_bytes(b"x")
    log = open_log(tmp_path)
    log.snapshots.find(log.end_offset)
    assert (log.offline_reason, log.end_offset, log.cut_marks, log.snapshots.offsets) == ("", 20, (), [])
    assert {path.name for path in tmp_path.iterdir()} == {FIRST, "partition.metadata", "leader-epoch-checkpoint", *foreign}
    assert caplog.messages == [f"{tmp_path}: ignoring what is not the broker's: {', '.join(sorted(foreign))}"]


def test_a_log_that_begins_late_opens_where_it_begins(tmp_path: Path) -> None:
    log = written_log(tmp_path, segment_bytes=BATCH_BYTES)
    log.delete_before(12)
    apply_retention(log, NOW_MS)
    log.close()
    log = open_log(tmp_path, clean=True, recovery_point=20, log_start_offset=12)
    assert (log.log_start_offset, log.end_offset) == (12, 20)
    assert files_with(tmp_path, ".log")[0].name == "00000000000000000010.log"


def test_a_log_that_ends_before_its_start_is_damage(tmp_path: Path) -> None:
    written_log(tmp_path)
    log = open_log(tmp_path, log_start_offset=21)
    with pytest.raises(StorageError, match="its log start offset is 21"):
        log.locate(21, 1, upto_offset=21)


class ReadingDisk(FailingDisk):
    """Counts the bytes that are read from log files."""

    log_bytes = 0

    def read_at(self, file: OpenFile, length: int, position: int) -> bytes:
        data = super().read_at(file, length, position)
        self.log_bytes += len(data) if file.path.suffix == ".log" else 0
        return data


def without_note(directory: Path) -> None:
    (directory / "00000000000000000005.indexnote").unlink()


def with_a_torn_note(directory: Path) -> None:
    (directory / "00000000000000000005.indexnote").write_bytes(b"{")


def with_an_index_of_zeros(directory: Path) -> None:
    path = directory / "00000000000000000005.index"
    path.write_bytes(bytes(len(path.read_bytes()) or 8))


SMALL = {"segment_bytes": BATCH_BYTES, "index_interval_bytes": 1}


@pytest.mark.parametrize("lose", [without_note, with_a_torn_note, with_an_index_of_zeros])
@pytest.mark.parametrize("recovery_point", [0, 20])
def test_indexes_that_a_power_cut_took_are_made_again_during_the_start(
    tmp_path: Path, lose: Callable[[Path], None], recovery_point: int
) -> None:
    written_log(tmp_path, **SMALL)
    lose(tmp_path)
    disk = ReadingDisk()
    log = open_log(tmp_path, recovery_point=recovery_point, filesystem=disk, **SMALL)
    assert len(files_with(tmp_path, ".indexnote")) == 3
    disk.log_bytes = 0
    assert [segment.largest_timestamp for segment in log.segments] == [NOW_MS] * 4
    assert disk.log_bytes == 0, "the loop reads no log for that"
    assert open_segments(tmp_path) == [str(log.segments.active.path(".log"))]


def test_a_clean_start_makes_a_missing_index_again_too(tmp_path: Path) -> None:
    written_log(tmp_path, **SMALL).close()
    without_note(tmp_path)
    log = open_log(tmp_path, clean=True, recovery_point=20, **SMALL)
    assert log.recovery.was_clean
    assert len(files_with(tmp_path, ".indexnote")) == 4
    assert open_segments(tmp_path) == [str(log.segments.active.path(".log"))]


def test_a_start_proves_the_indexes_written_last_and_believes_the_older_ones(tmp_path: Path) -> None:
    written_log(tmp_path, **SMALL)
    with_a_torn_note(tmp_path)
    for path in tmp_path.glob("*.indexnote"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    open_log(tmp_path, recovery_point=20, **SMALL)
    assert (tmp_path / "00000000000000000005.indexnote").read_bytes() == b"{"


def test_indexes_for_which_a_start_has_no_room_are_saved_with_the_next_flush(tmp_path: Path) -> None:
    written_log(tmp_path, **SMALL)
    for path in files_with(tmp_path, ".indexnote"):
        path.unlink()
    disk = FailingDisk()
    disk.failing = {"write_bytes"}
    log = open_log(tmp_path, filesystem=disk, **SMALL)
    assert log.offline_reason == ""
    assert len(open_segments(tmp_path)) == 1
    disk.failing = set()
    append(log, plain_batch(5))
    flush(log)
    assert len(files_with(tmp_path, ".indexnote")) == 4
    assert open_segments(tmp_path) == [str(log.segments.active.path(".log"))]


def test_an_index_made_again_while_the_broker_runs_is_saved_when_it_is_forgotten(tmp_path: Path) -> None:
    log = written_log(tmp_path, **SMALL)
    without_note(tmp_path)
    segment = log.segments.holding(5)
    segment._stored = segment._largest_timestamp = None
    assert segment.largest_timestamp == NOW_MS
    assert (tmp_path / "00000000000000000005.indexnote").exists()
    assert not segment.is_warm


def after_a_failed_flush(directory: Path, disk: FailingDisk) -> None:
    """A log of fifteen flushed records, and five more whose flush failed."""
    log = open_log(directory, filesystem=disk)
    append_each(log, 3, 5)
    flush(log)
    append(log, plain_batch(5))
    ticket = begun_flush(log)
    disk.failing |= {"sync_data"}
    with pytest.raises(StorageError) as failure:
        ticket.run()
    log.fail_flush(ticket, failure.value)
    with pytest.raises(StorageError, match="cannot flush"):
        log.close()  # so the stop is not clean


class WritingDisk(FailingDisk):
    """Records what is written into log files, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, bytes]] = []

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        if file.path.suffix == ".log":
            self.written.append((position, b"".join(map(bytes, buffers))))
        return super().write_some(file, buffers, position)


def test_a_start_after_an_unclean_stop_writes_again_what_it_cannot_vouch_for(tmp_path: Path) -> None:
    after_a_failed_flush(tmp_path, FailingDisk())
    content = (tmp_path / FIRST).read_bytes()
    disk = WritingDisk()
    log = open_log(tmp_path, recovery_point=15, filesystem=disk)
    assert (log.offline_reason, log.recovery.was_clean, log.flushed_offset) == ("", False, 20)
    assert disk.written == [(3 * BATCH_BYTES, content[3 * BATCH_BYTES :])]
    assert (tmp_path / FIRST).read_bytes() == content
    disk.written.clear()
    log.close()
    open_log(tmp_path, clean=True, recovery_point=20, filesystem=disk)
    assert disk.written == []


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_a_start_that_cannot_write_it_again_is_offline_until_one_can(tmp_path: Path, call: str) -> None:
    after_a_failed_flush(tmp_path, FailingDisk())
    disk = FailingDisk()
    disk.failing = {call}
    log = open_log(tmp_path, recovery_point=15, filesystem=disk)
    assert "its records may not be on disk" in log.offline_reason
    assert open_log(tmp_path, recovery_point=15).offline_reason == ""
