"""Flush before expose: when a flush starts, what it takes, who is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.partitions.flusher import GATHER_SECONDS
from broker.partitions.partition import Partition
from broker.records.validation import validate_new_batch
from broker.storage.filesystem import FileSystem
from tests.support.engine import Harness, batch


class Disk(FileSystem):
    failing = False

    def sync_data(self, file) -> None:  # type: ignore[no-untyped-def]
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_data(file)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[Harness]:
    harness = Harness(tmp_path, filesystem=disk)
    harness.create("clicks")
    yield harness
    disk.failing = False
    harness.close()


@pytest.fixture
def partition(broker: Harness) -> Partition:
    return broker.engine.partitions.get("clicks", 0)


def append(broker: Harness, partition: Partition) -> None:
    raw = batch(b"a")
    partition.stage(validate_new_batch(memoryview(raw), message_bytes_max=1 << 20, now_ms=broker.clock.now_ms()))
    partition.write_staged()
    broker.engine.context.flusher.appended(partition, len(raw))


def test_nothing_is_flushed_while_nobody_waits_and_no_bound_is_reached(broker: Harness, partition: Partition) -> None:
    append(broker, partition)
    broker.turn()
    assert not broker.helpers.jobs
    assert partition.visible_offset == 0


def test_who_waits_is_told_when_his_offset_is_flushed_and_not_before(broker: Harness, partition: Partition) -> None:
    told: list[StorageError | None] = []
    append(broker, partition)
    broker.engine.context.flusher.when_visible(partition, 1, told.append)
    broker.turn()
    assert told == []
    broker.settle()
    assert told == [None]


def test_who_asks_for_what_is_flushed_is_told_at_once(broker: Harness, partition: Partition) -> None:
    told: list[StorageError | None] = []
    broker.engine.context.flusher.when_visible(partition, 0, told.append)
    assert told == [None]


def test_a_waiter_beyond_the_flush_in_flight_gets_the_next_one(broker: Harness, partition: Partition) -> None:
    told: list[int] = []
    flusher = broker.engine.context.flusher
    append(broker, partition)
    flusher.when_visible(partition, 1, lambda error: told.append(1))
    broker.turn()
    append(broker, partition)
    flusher.when_visible(partition, 2, lambda error: told.append(2))
    broker.helpers.run()
    broker.turn()
    assert told == [1]
    broker.clock.advance_ms(1)
    broker.settle()
    assert told == [1, 2]


def waiting(broker: Harness, partition: Partition, told: list[int]) -> None:
    """Another record, and somebody who waits for it."""
    append(broker, partition)
    offset = partition.end_offset
    broker.engine.context.flusher.when_visible(partition, offset, lambda error: told.append(offset))


def test_those_who_were_answered_together_are_waited_for_and_flushed_together(broker: Harness, partition: Partition) -> None:
    told: list[int] = []
    for _ in range(3):
        waiting(broker, partition, told)
    broker.settle()
    for _ in range(2):
        waiting(broker, partition, told)
        broker.turn()
        assert not broker.helpers.jobs
    waiting(broker, partition, told)
    broker.turn()
    assert len(broker.helpers.jobs) == 1
    broker.settle()
    assert told == [1, 2, 3, 4, 5, 6]


def test_who_does_not_come_back_is_waited_for_a_moment_only(broker: Harness, partition: Partition) -> None:
    flusher, told = broker.engine.context.flusher, list[int]()
    for _ in range(3):
        waiting(broker, partition, told)
    broker.settle()
    waiting(broker, partition, told)
    broker.turn()
    assert not broker.helpers.jobs
    assert flusher.next_deadline() == broker.clock.monotonic() + GATHER_SECONDS
    broker.clock.advance_ms(1)
    broker.settle()
    assert told == [1, 2, 3, 4]


def test_a_producer_alone_never_waits_for_others(broker: Harness, partition: Partition) -> None:
    told: list[int] = []
    for _ in range(3):
        waiting(broker, partition, told)
        broker.turn()
        assert len(broker.helpers.jobs) == 1
        broker.settle()
    assert told == [1, 2, 3]


def test_a_loop_that_sleeps_wakes_for_the_interval_and_at_once_for_a_waiter(broker: Harness, partition: Partition) -> None:
    flusher = broker.engine.context.flusher
    assert flusher.next_deadline() is None
    append(broker, partition)
    assert flusher.next_deadline() == broker.clock.monotonic() + 1.0
    flusher.want(partition)
    assert flusher.next_deadline() == broker.clock.monotonic()


def test_a_failed_flush_tells_its_waiters_and_takes_the_partition_offline(
    broker: Harness, partition: Partition, disk: Disk
) -> None:
    told: list[StorageError | None] = []
    append(broker, partition)
    broker.engine.context.flusher.when_visible(partition, 1, told.append)
    disk.failing = True
    broker.settle()
    assert len(told) == 1
    assert isinstance(told[0], StorageError)
    assert partition.visible_offset == 0
    with pytest.raises(StorageError):
        append(broker, partition)


def test_a_partition_deleted_during_its_flush_is_forgotten(broker: Harness, partition: Partition) -> None:
    told: list[StorageError | None] = []
    append(broker, partition)
    broker.engine.context.flusher.when_visible(partition, 1, told.append)
    broker.turn()
    broker.engine.partitions.delete(broker.engine.partitions.registry.get("clicks"))
    broker.settle()
    assert [type(error) for error in told] == [StorageError]
    assert broker.engine.context.flusher.next_deadline() is None


def test_a_partition_flushed_for_a_waiter_and_written_again_waits_its_whole_interval(
    broker: Harness, partition: Partition
) -> None:
    flusher = broker.engine.context.flusher
    append(broker, partition)
    broker.clock.advance_ms(600)
    flusher.want(partition)
    broker.settle()
    append(broker, partition)
    broker.clock.advance_ms(999)
    broker.settle()
    assert partition.visible_offset == 1
    broker.clock.advance_ms(1)
    broker.settle()
    assert partition.visible_offset == 2


def test_every_partition_that_is_due_is_flushed_in_the_turn(broker: Harness) -> None:
    broker.create("views", partitions=5)
    dirty = [broker.engine.partitions.get("views", index) for index in range(5)]
    for partition in dirty:
        append(broker, partition)
    broker.clock.advance_ms(1_000)
    broker.settle()
    assert [partition.visible_offset for partition in dirty] == [1] * 5
    assert broker.engine.context.flusher.next_deadline() is None
