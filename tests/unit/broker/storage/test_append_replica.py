from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.records.batch import Buffer
from broker.records.replicated import split_replicated
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.leader_epochs import LEADER_EPOCHS
from broker.storage.partition_log import PartitionLog
from broker.storage.rolling import RELATIVE_OFFSET_MAX
from tests.support.batches import plain_batch, stamped
from tests.support.logs import FailingDisk, files_with, flush, headers_from, located_bytes, open_log


def sent(*places: tuple[int, int]) -> memoryview:
    """Batches of five records with these offsets and epochs."""
    return memoryview(b"".join(bytes(stamped(plain_batch(5), base_offset, epoch)[0]) for base_offset, epoch in places))


def take(log: PartitionLog, view: memoryview) -> None:
    log.append_replica(view, split_replicated(view, log.end_offset, 99, log.epochs.written.latest))


def stored(log: PartitionLog) -> bytes:
    return b"".join(log.batches_from(log.log_start_offset))


class CountingWrites(FailingDisk):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        self.writes.append(len(buffers))
        return super().write_some(file, buffers, position)


def test_a_leaders_bytes_are_stored_unchanged_in_one_write(tmp_path: Path) -> None:
    disk = CountingWrites()
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
    assert first == [bytes(sent(place)) for place in ((3, 0), (20, 0), (20, 0), (40, 1), (40, 1))]


def test_a_gap_in_the_active_segment_of_a_broker_that_is_alone_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_replica=True)
    take(log, sent((0, 0), (20, 0)))
    assert open_log(tmp_path).end_offset == 5


def test_a_new_segment_begins_where_the_log_ended_also_before_a_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200, is_replica=True)
    for offset in (0, 10, 30):
        take(log, sent((offset, 0)))
    assert [int(path.stem) for path in files_with(tmp_path, ".log")] == [0, 5, 15]
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
