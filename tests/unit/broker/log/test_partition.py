from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from logbus_broker.errors import OutOfOrderSequence, StorageError
from logbus_broker.log.partition import Partition, Staged
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import read_records
from logbus_broker.setting_parsers import INT64_MAX

from tests.support.batches import plain_batch, produced, validated
from tests.support.logs import FailingDisk, open_log, read_all

TOPIC_ID = UUID(int=1)


def partition_on(directory: Path, disk: FailingDisk | None = None, **config: int) -> Partition:
    log = open_log(directory, filesystem=disk, **config)
    log.epochs.current = 6
    return Partition("access", 3, TOPIC_ID, log)


def test_staging_numbers_and_stamps_and_shows_nothing(tmp_path: Path) -> None:
    partition = partition_on(tmp_path)
    first, second = plain_batch(3), plain_batch(2)
    assert partition.stage(validated(first)) == Staged(0, False)
    assert partition.stage(validated(second)) == Staged(3, False)
    assert [record.offset for record in read_records(second)] == [3, 4]
    assert read_header(second).leader_epoch == 6
    assert partition.staged_views
    assert (partition.end_offset, partition.visible_offset, partition.log_start_offset) == (0, 0, 0)


def test_what_is_staged_is_written_together_and_nobody_sees_it_yet(tmp_path: Path) -> None:
    partition = partition_on(tmp_path)
    partition.stage(validated(plain_batch(3)))
    partition.stage(validated(plain_batch(2)))
    partition.write_staged()
    assert not partition.staged_views
    assert (partition.end_offset, partition.visible_offset) == (5, 0)
    assert [record.offset for record in read_all(partition.log)] == list(range(5))


def test_writing_nothing_is_harmless(tmp_path: Path) -> None:
    partition = partition_on(tmp_path)
    partition.write_staged()
    assert partition.end_offset == 0


def test_a_refused_batch_leaves_the_others_of_the_turn(tmp_path: Path) -> None:
    partition = partition_on(tmp_path)
    partition.stage(validated(produced(9, 0, 2)))
    with pytest.raises(OutOfOrderSequence):
        partition.stage(validated(produced(9, 5)))
    assert partition.stage(validated(produced(9, 2))) == Staged(2, False)
    partition.write_staged()
    assert partition.end_offset == 3


def test_a_failed_write_takes_the_whole_turn_back(tmp_path: Path) -> None:
    disk = FailingDisk()
    partition = partition_on(tmp_path, disk)
    partition.stage(validated(produced(9, 0, 2)))
    partition.write_staged()
    partition.stage(validated(produced(9, 2, 2)))
    partition.stage(validated(produced(10, 0, 1)))
    disk.writable_bytes = 100
    with pytest.raises(StorageError, match="No space left"):
        partition.write_staged()
    assert not partition.staged_views
    assert partition.end_offset == 2
    disk.writable_bytes = None
    assert partition.stage(validated(produced(9, 2, 2))) == Staged(2, False), "its producer may send it again"
    with pytest.raises(OutOfOrderSequence):
        partition.stage(validated(produced(10, 1)))  # it was in flight when the first batch was refused
    assert partition.stage(validated(produced(10, 0))) == Staged(4, False), "a producer that never got through begins there"
    partition.write_staged()
    assert [record.offset for record in read_all(partition.log)] == list(range(5))


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_remembered_over_a_restart(tmp_path: Path, clean: bool) -> None:
    partition = partition_on(tmp_path, segment_bytes=200)
    for sequence in range(8):
        partition.stage(validated(produced(9, sequence)))
        partition.write_staged()
    if clean:
        partition.log.close()
    log = open_log(tmp_path, clean=clean, recovery_point=8 if clean else 0, segment_bytes=200)
    partition = Partition("access", 3, TOPIC_ID, log)
    assert partition.stage(validated(produced(9, 5))) == Staged(5, True)
    assert partition.stage(validated(produced(9, 8))) == Staged(8, False)


def test_a_partition_whose_log_is_damaged_is_made_all_the_same_and_refuses_writes(tmp_path: Path) -> None:
    """A checkpoint from elsewhere may say that it ends at an offset that no batch has room for."""
    log = open_log(tmp_path, recovery_point=INT64_MAX)
    partition = Partition("access", 3, TOPIC_ID, log)
    assert partition.name == "access-3"
    for _ in range(2):
        with pytest.raises(StorageError, match="had been flushed"):
            partition.stage(validated(plain_batch()))
    assert not partition.staged_views


@pytest.mark.parametrize(
    "function",
    [
        "logbus_broker.log.segment_index.SegmentIndex.observe",
        "logbus_broker.filesystem.FileSystem.write_some",
        "logbus_broker.log.producer_state.ProducerStates.apply_staged",
    ],
)
def test_what_nobody_expected_during_a_write_takes_the_partition_offline_and_a_start_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, defects: list[str]
) -> None:
    def defect(*_: object) -> None:
        raise MemoryError("no memory")

    partition = partition_on(tmp_path)
    partition.stage(validated(produced(7, 0)))
    partition.write_staged()
    with monkeypatch.context() as patch:
        patch.setattr(function, defect)
        partition.stage(validated(produced(7, 1)))
        with pytest.raises(StorageError, match="no memory"):
            partition.write_staged()
    assert len(defects) == 1
    defects.clear()
    assert not partition.staged_views
    with pytest.raises(StorageError, match="no memory"):
        partition.stage(validated(produced(7, 1)))
    with pytest.raises(StorageError):
        partition.close()
    again = partition_on(tmp_path)
    assert again.log.offline_reason == ""
    assert again.end_offset in (1, 2)
    staged = again.stage(validated(produced(7, 1)))
    assert staged.base_offset == 1
    assert staged.duplicate == (again.end_offset == 2), "what a start finds is remembered as sent"
