from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from logbus_broker.errors import OutOfOrderSequence
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition import Partition
from logbus_broker.log.producer_state import (
    ENCODED_AT_ONCE_MAX,
    ProducerState,
    ProducerStates,
    decode_producers,
    encode_producers,
)
from logbus_broker.protocol.batch import read_header

from tests.support.batches import NOW_MS, plain_batch, produced, validated
from tests.support.logs import CountingDisk, FailingDisk, files_with, flush, open_log, truncate

TOPIC_ID = UUID(int=1)
BATCH_BYTES = len(produced(7, 0))


def open_partition(directory: Path, *, expiration_ms: int = 86_400_000, **config: object) -> Partition:
    return Partition("t", 0, TOPIC_ID, open_log(directory, **config), producer_expiration_ms=expiration_ms)  # type: ignore[arg-type]


def send(partition: Partition, producer_id: int, sequence: int) -> int:
    """Append one record, and return its offset."""
    staged = partition.stage(validated(produced(producer_id, sequence)))
    partition.write_staged()
    flush(partition.log)
    return staged.base_offset


def send_all(partition: Partition, producer_id: int, sequences: range) -> None:
    for sequence in sequences:
        send(partition, producer_id, sequence)


def test_a_start_reads_only_what_is_behind_the_snapshot(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=100 * BATCH_BYTES)
    send_all(partition, 7, range(250))
    partition.close()
    disk = CountingDisk()
    again = open_partition(tmp_path, clean=True, filesystem=disk, segment_bytes=100 * BATCH_BYTES)
    assert sum(disk.reads) <= 100 * BATCH_BYTES, "half of the active segment, twice: its first batch, and that it is whole"
    assert send(again, 7, 249) == 249
    assert send(again, 7, 250) == 250


@pytest.mark.parametrize("offset", [0, 55, 130, 199, 250])
def test_after_a_cut_producers_go_on_where_their_last_batch_that_is_left_ends(tmp_path: Path, offset: int) -> None:
    partition = open_partition(tmp_path, segment_bytes=100 * BATCH_BYTES)
    send_all(partition, 7, range(250))
    send(partition, 9, 0)
    truncate(partition.log, offset)
    partition.discard_staged()
    assert partition.producers.get(9) is None, "nothing of it is left"
    assert send(partition, 7, offset) == offset
    if offset:
        with pytest.raises(OutOfOrderSequence):
            send(partition, 7, offset + 2)
    assert not [path for path in files_with(tmp_path, ".snapshot") if int(path.stem) > offset + 1]


def test_a_producer_that_writes_after_a_cut_is_not_taken_for_silent(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, expiration_ms=1000)
    send_all(partition, 7, range(20))
    partition.producer_snapshots.expire(0.0)
    truncate(partition.log, 5)
    partition.discard_staged()
    assert send(partition, 7, 5) == 5
    assert partition.producer_snapshots.expire(1.5) == 0
    assert partition.producers.get(7) is not None


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["none", "missing", "empty", "corrupt", "both corrupt", "a stray file"])
def test_a_snapshot_that_cannot_be_believed_is_rebuilt_from_the_log_with_identical_answers(
    tmp_path: Path, damage: str, clean: bool
) -> None:
    partition = open_partition(tmp_path, segment_bytes=10 * BATCH_BYTES)
    for sequence in range(35):
        send(partition, 7, sequence)
        send(partition, 8, sequence)
    expected = dict(partition.producers.stored())
    if clean:
        partition.close()
    newest = files_with(tmp_path, ".snapshot")[-1]
    if damage == "missing":
        newest.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "corrupt":
        newest.write_bytes(newest.read_bytes()[:-1] + b"\xa5")
    elif damage == "both corrupt":
        for path in files_with(tmp_path, ".snapshot"):
            path.write_bytes(b"\0\1garbage")
    elif damage == "a stray file":
        (tmp_path / "not-a-number.snapshot").write_bytes(b"x")
    again = open_partition(tmp_path, clean=clean, segment_bytes=10 * BATCH_BYTES)
    assert dict(again.producers.stored()) == expected
    for sequence in range(30, 35):
        assert send(again, 8, sequence) == sequence * 2 + 1, "each of the last five is a duplicate"
    with pytest.raises(OutOfOrderSequence):
        send(again, 8, 29)


def test_a_snapshot_of_what_a_crash_has_cut_off_is_removed(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=2 * BATCH_BYTES)
    send_all(partition, 7, range(6))
    partition.close()
    for path in files_with(tmp_path, ".log")[1:]:
        path.unlink()
    again = open_partition(tmp_path, segment_bytes=2 * BATCH_BYTES)
    assert again.end_offset == 2
    assert [int(path.name[:20]) for path in files_with(tmp_path, ".snapshot")] == []
    assert send(again, 7, 2) == 2


def test_the_last_batches_survive_the_retention_of_their_records(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=2 * BATCH_BYTES, retention_bytes=0)
    send_all(partition, 7, range(7))
    assert apply_retention(partition.log, NOW_MS) == 3
    partition.close()
    again = open_partition(tmp_path, clean=True, recovery_point=7, log_start_offset=6, segment_bytes=2 * BATCH_BYTES)
    assert [send(again, 7, sequence) for sequence in range(2, 8)] == [2, 3, 4, 5, 6, 7]


def test_few_snapshots_are_kept_and_a_log_without_change_writes_none(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, segment_bytes=2 * BATCH_BYTES)
    send_all(partition, 7, range(20))
    assert len(files_with(tmp_path, ".snapshot")) == 2
    partition.close()
    before = [(path.name, path.stat().st_mtime_ns) for path in files_with(tmp_path, ".snapshot")]
    open_partition(tmp_path, clean=True, segment_bytes=2 * BATCH_BYTES).close()
    assert [(path.name, path.stat().st_mtime_ns) for path in files_with(tmp_path, ".snapshot")] == before


def test_a_full_disk_for_snapshots_fails_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    partition = open_partition(tmp_path, filesystem=disk, segment_bytes=2 * BATCH_BYTES)
    send(partition, 7, 0)
    disk.failing = {"write_bytes"}
    send_all(partition, 7, range(1, 5))
    assert files_with(tmp_path, ".snapshot") == []


def test_a_silent_producer_is_forgotten_by_the_clock_and_not_by_its_timestamps(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, expiration_ms=1_000_000)
    send_all(partition, 7, range(3))
    snapshots = partition.producer_snapshots
    assert snapshots.expire(100.0) == 0
    send(partition, 8, 0)
    assert snapshots.expire(600.0) == 0
    assert snapshots.expire(1_099.0) == 0
    assert snapshots.expire(1_100.0) == 1, "silent since it was first seen to be"
    assert partition.producers.get(7) is None
    assert partition.producers.get(8) is not None
    assert snapshots.expire(1_600.0) == 1


def test_who_was_silent_before_a_stop_is_forgotten_after_it(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, expiration_ms=1_000, segment_bytes=BATCH_BYTES)
    send(partition, 7, 0)
    send(partition, 8, 0)
    partition.stage(validated(plain_batch()))
    partition.write_staged()
    partition.close()
    first, second, last = files_with(tmp_path, ".log")
    for path, age in ((first, 5_000), (second, 500), (last, 100)):
        os.utime(path, ns=(0, (NOW_MS - age) * 1_000_000))
    again = open_partition(tmp_path, clean=True, expiration_ms=1_000, segment_bytes=BATCH_BYTES)
    assert set(again.producers.stored()) == {8}


def test_a_snapshot_reads_as_it_was_written_in_every_epoch_and_across_the_wrap() -> None:
    states = ProducerStates()
    for number, sequence in enumerate((2**31 - 2, 0, 1, 2, 3, 4, 5)):
        header = read_header(produced(9, sequence, 1 + (number == 0), epoch=3))
        states.apply(header._replace(base_offset=number * 10))
    states.apply(read_header(produced(4, 0, 3))._replace(base_offset=500))
    data = bytes(encode_producers(states.stored()))
    assert decode_producers(data) == dict(states.stored())
    for position in range(len(data)):
        assert decode_producers(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]) is None
        assert decode_producers(data[:position]) is None


# -- many producers --------------------------------------------------------------------------------------------------------------


MANY = 3 * ENCODED_AT_ONCE_MAX


class Crowded:
    """A partition whose log begins with one batch of each of many producers, and the tasks that it has begun."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.partition = open_partition(directory, segment_bytes=1 << 20)
        self.tasks: list[Steps] = []
        self.partition.producer_snapshots.begin_task = lambda steps, failed: self._begin(steps)
        for number in range(MANY):
            self.partition.stage(validated(produced(1_000 + number, 0)))
        self.partition.write_staged()
        flush(self.partition.log)
        self.snapshots = self.partition.log.snapshots

    def _begin(self, steps: Steps) -> None:
        self.tasks.append(steps)
        next(steps)  # its first slice runs at once

    def finish(self) -> int:
        """Let the only task end; returns how many steps it took."""
        (steps,) = self.tasks
        self.tasks.clear()
        return sum(1 for _ in steps)

    def stored(self) -> dict[int, ProducerState]:
        return dict(self.partition.producers.stored())


@pytest.fixture
def crowded(tmp_path: Path) -> Crowded:
    return Crowded(tmp_path)


def test_a_roll_does_not_wait_for_the_snapshot_of_many_producers(crowded: Crowded) -> None:
    """It shows them as they were then, whatever they send in the meantime."""
    before = crowded.stored()
    crowded.partition.log.roll()
    assert crowded.snapshots.offsets == []
    send(crowded.partition, 1_000, 1)
    assert crowded.finish() >= MANY // 100
    assert crowded.snapshots.offsets == [MANY]
    assert decode_producers(crowded.snapshots.read(MANY)) == before
    again = open_partition(crowded.directory, segment_bytes=1 << 20)
    assert dict(again.producers.stored()) == crowded.stored()


def test_a_log_that_rolls_during_a_snapshot_gets_another_one(crowded: Crowded) -> None:
    crowded.partition.log.roll()
    for sequence in (1, 2):
        send(crowded.partition, 1_000, sequence)
        crowded.partition.log.roll()
    assert len(crowded.tasks) == 1
    crowded.finish()
    assert crowded.snapshots.offsets == [MANY, MANY + 2]
    assert decode_producers(crowded.snapshots.read(MANY + 2)) == crowded.stored()
    assert not crowded.partition.producer_snapshots.is_saving
    send(crowded.partition, 1_000, 3)
    crowded.partition.log.roll()
    crowded.finish()
    assert crowded.snapshots.offsets == [MANY + 2, MANY + 3]


def test_what_was_cut_off_in_the_meantime_is_not_saved(crowded: Crowded) -> None:
    """Also if the log is as long again by then, with other producers."""
    log = crowded.partition.log
    log.roll()
    truncate(log, MANY - 100)
    crowded.partition.discard_staged()
    for sequence in range(200):
        send(crowded.partition, 7, sequence)
    crowded.finish()
    assert crowded.snapshots.offsets == []
    assert not files_with(crowded.directory, ".snapshot")


def test_nothing_is_saved_while_the_log_is_truncating(crowded: Crowded) -> None:
    log = crowded.partition.log
    log.roll()
    ticket = log.begin_truncation(MANY - 100)
    crowded.finish()
    assert not files_with(crowded.directory, ".snapshot")
    ticket.run()
    log.finish_truncation(ticket)


def test_nothing_is_saved_once_the_partition_is_gone(crowded: Crowded) -> None:
    """Its directory may belong to another by then."""
    crowded.partition.log.roll()
    crowded.partition.log.abandon("deleted")
    crowded.finish()
    assert not files_with(crowded.directory, ".snapshot")


def test_a_clean_stop_saves_what_a_task_has_not(crowded: Crowded) -> None:
    crowded.partition.log.roll()
    send(crowded.partition, 1_000, 1)
    crowded.partition.close()
    crowded.finish()
    assert [int(path.stem) for path in files_with(crowded.directory, ".snapshot")] == [MANY + 1]
    again = open_partition(crowded.directory, clean=True, segment_bytes=1 << 20)
    assert dict(again.producers.stored()) == crowded.stored()
