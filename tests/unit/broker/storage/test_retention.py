from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.errors import OffsetOutOfRange, StorageError
from broker.storage.partition_log import PartitionLog
from broker.storage.retention import apply_retention
from tests.support.batches import NOW_MS, plain_batch
from tests.support.logs import FailingDisk, append, files_with, flush, open_log, read_all

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
    assert (log.log_start_offset, log.end_offset, log.size_bytes) == (2, 2, 0)
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
    assert log.size_bytes == (4 - deleted) * BATCH_BYTES


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
    assert [path.name for path in files_with(tmp_path, ".log")] == ["00000000000000000001.log"]
    paths = log.take_removed_paths()
    assert {path.name for path in paths} == {
        f"00000000000000000000{suffix}.deleted" for suffix in (".log", ".index", ".timeindex", ".indexnote")
    }
    assert log.take_removed_paths() == []


def test_an_unflushed_segment_is_not_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=BATCH_BYTES, retention_bytes=0)
    append(log, plain_batch())
    append(log, plain_batch())
    assert apply_retention(log, 0) == 0
    flush(log)
    assert apply_retention(log, 0) == 1


def test_a_disk_that_refuses_to_rename_keeps_the_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, segment_bytes=BATCH_BYTES, retention_bytes=0, filesystem=disk)
    append(log, plain_batch())
    append(log, plain_batch())
    flush(log)
    disk.failing = {"rename"}
    with pytest.raises(StorageError, match="cannot delete old segments"):
        apply_retention(log, 0)
    disk.failing = set()
    assert [record.offset for record in read_all(log)] == [0, 1]


def test_a_deletion_that_is_refused_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    for _ in range(3):
        append(log, plain_batch())
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
