"""When the fast path is taken, when it leaves a request to the ordinary path, and what is stored when the disk fails. That both
paths answer and store the same is tested in tests/property/broker/test_produce_fast_path.py."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from logbus_broker.api.produce_fast_path import SHAPES_MAX
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.partition import Partition
from logbus_broker.log.segment_index import SegmentIndex
from logbus_broker.protocol.api import ErrorCode
from logbus_broker.protocol.batch import Buffer

from tests.support.admin import SET, TOPIC, alter
from tests.support.batches import plain_batch, produced
from tests.support.engine import Harness
from tests.support.logs import headers_from
from tests.support.two_paths import Side, produce_frame

STORAGE_ERROR = 56


class RefusingDisk(FileSystem):
    """Calls fail by name: a list has a flag for each upcoming call; with `partly`, a failing write first writes some bytes."""

    def __init__(self) -> None:
        self.refusals: dict[str, list[bool]] = {}
        self.partly = False

    def _refuse(self, call: str) -> None:
        if self.refusals.get(call) and self.refusals[call].pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")

    def write_some(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> int:
        if self.partly and (self.refusals.get("write_some") or [False])[0]:
            super().write_some(file, (bytes(buffers[0])[:20],), position)
        self._refuse("write_some")
        return super().write_some(file, buffers, position)

    def truncate(self, file: OpenFile, length: int) -> None:
        self._refuse("truncate")
        super().truncate(file, length)

    def sync_data(self, file: OpenFile) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class Producer:
    """One connection of a side; a request on it is answered in the turn in which it is sent."""

    def __init__(self, side: Side, number: int = 1, topic: bytes = b"clicks") -> None:
        self.side, self.number, self.topic = side, number, topic
        self._sent = 0

    def frame(self, *partitions: int, batches: Sequence[bytearray] = (), acks: int = 1) -> bytes:
        batches = batches or [plain_batch(2) for _ in partitions]
        rows = [(index, bytes(batch)) for index, batch in zip(partitions, batches, strict=True)]
        return produce_frame(8, 7, [(self.topic, rows)], acks=acks)

    def send(self, *partitions: int, batches: Sequence[bytearray] = (), acks: int = 1) -> list[tuple[int, int, int]]:
        """Index, error and base offset of each partition."""
        self.side.feed(self.number, self.frame(*partitions or (0,), batches=batches, acks=acks))
        self.side.turn()
        return self.answered()

    def answered(self) -> list[tuple[int, int, int]]:
        """The rows of the last answer, as in `send`."""
        raw = bytes(self.side.sockets[self.number].sent)[self._sent :]
        self._sent += len(raw)
        if not raw:
            return []
        length = int.from_bytes(raw[:4], "big")
        assert length + 4 == len(raw), "one answer"
        position = 12 + 2 + len(self.topic)
        rows = []
        for _ in range(int.from_bytes(raw[position : position + 4], "big")):
            row = raw[position + 4 :]
            rows.append(
                (int.from_bytes(row[:4], "big"), int.from_bytes(row[4:6], "big"), int.from_bytes(row[6:14], "big", signed=True))
            )
            message = int.from_bytes(row[34:36], "big", signed=True)
            position += 36 + max(message, 0)
        return rows

    def warm(self, *partitions: int) -> None:
        """Send until the next request takes the fast path."""
        for _ in range(3):
            self.send(*partitions or (0,))


@pytest.fixture
def disk() -> RefusingDisk:
    return RefusingDisk()


@pytest.fixture
def side(tmp_path: Path, disk: RefusingDisk) -> Iterator[Side]:
    side = Side(tmp_path, fast_path=True, filesystem=disk)
    side.harness.create("clicks", 3)
    yield side
    side.close()


def partition_of(side: Side, index: int = 0) -> Partition:
    return side.engine.partitions.get("clicks", index)


def is_taken(side: Side, action: Callable[[], object]) -> bool:
    before = side.taken
    action()
    return side.taken > before


def test_the_second_request_of_a_kind_teaches_and_the_third_is_taken(side: Side) -> None:
    producer = Producer(side)
    assert [is_taken(side, producer.send) for _ in range(4)] == [False, False, True, True]
    assert producer.send() == [(0, 0, 8)]
    partition = partition_of(side)
    assert (partition.end_offset, partition.traffic.messages_in) == (10, 10)
    assert partition.traffic.bytes_in == partition.log.segments.size_bytes


def test_a_switch_turns_it_off(tmp_path: Path) -> None:
    side = Side(tmp_path, fast_path=False)
    side.harness.create("clicks", 3)
    producer = Producer(side)
    producer.warm()
    assert not is_taken(side, producer.send)
    assert side.engine.fast_path is None
    side.close()


def test_a_connection_remembers_a_few_shapes_and_may_send_any_number(side: Side) -> None:
    for number in range(SHAPES_MAX + 10):
        side.feed(1, produce_frame(8, 1, [(b"clicks", [(0, bytes(plain_batch()))])], client=b"client %d" % number))
        side.turn()
    (connection,) = side._connections.values()
    assert connection._fast_path is not None
    assert len(connection._fast_path._shapes) == SHAPES_MAX


def test_a_request_that_names_a_partition_twice_is_not_taken(side: Side) -> None:
    producer = Producer(side)
    producer.warm()
    rows: list[tuple[int, int, int]] = []
    assert not is_taken(side, lambda: rows.extend(producer.send(0, 1, 0)))
    assert rows == [(0, 0, 6), (1, 0, 0), (0, ErrorCode.INVALID_REQUEST, -1)]
    assert partition_of(side).end_offset == 8


def test_two_producers_in_alternation_keep_the_fast_path(side: Side) -> None:
    producer, sequences = Producer(side), {1: 0, 2: 0}

    def send(producer_id: int) -> None:
        (row,) = producer.send(batches=[produced(producer_id, sequences[producer_id], 2)])
        assert row[1] == 0
        sequences[producer_id] += 2

    for producer_id in (1, 2, 1, 2):
        send(producer_id)
    assert all(is_taken(side, lambda producer_id=producer_id: send(producer_id)) for producer_id in (1, 2, 1, 2, 2))  # type: ignore[misc]
    state = partition_of(side).producers.get(2)
    assert state is not None
    assert [batch.base_sequence for batch in state.batches] == [0, 2, 4, 6, 8]


def change_settings(harness: Harness) -> None:
    assert alter(harness, TOPIC, "clicks", ("message.timestamp.type", SET, "LogAppendTime")) == (0, None)


def roll(harness: Harness) -> None:
    harness.engine.partitions.get("clicks", 0).log.roll()


def resign(harness: Harness) -> None:
    partition = harness.engine.partitions.get("clicks", 0)
    harness.engine.partitions.resign(partition)
    harness.engine.partitions.lead(partition, partition.leader_epoch + 1)


def make_anew(harness: Harness) -> None:
    harness.delete("clicks")
    harness.settle()
    harness.create("clicks", 3)
    harness.settle()


@pytest.mark.parametrize("change", [change_settings, roll, resign, make_anew])
def test_what_changes_seldom_disarms_a_partition(side: Side, change: Callable[[Harness], None]) -> None:
    producer = Producer(side)
    producer.warm()
    change(side.harness)
    assert not is_taken(side, producer.send)


@pytest.mark.parametrize("change", [roll, resign, make_anew])
def test_a_partition_is_armed_again_as_it_is_then(side: Side, change: Callable[[Harness], None]) -> None:
    producer = Producer(side)
    producer.warm()
    change(side.harness)
    producer.warm()
    assert is_taken(side, producer.send)
    partition = partition_of(side)
    epochs = {header.leader_epoch for header in headers_from(partition.log, partition.end_offset - 1)}
    assert epochs == {partition.leader_epoch}


def test_a_log_that_is_offline_is_not_written_to(side: Side) -> None:
    producer = Producer(side)
    producer.warm()
    log = partition_of(side).log
    size = log.segments.size_bytes
    log.go_offline("somebody pulled the disk")
    assert [row[1] for row in producer.send()] == [STORAGE_ERROR]
    assert log.segments.size_bytes == size


def test_a_deleted_partition_is_held_by_nothing_of_the_fast_path(side: Side) -> None:
    producer = Producer(side)
    producer.warm()
    log = weakref.ref(partition_of(side).log)
    side.harness.delete("clicks")
    side.harness.settle()
    gc.collect()  # references from unrelated cycles do not matter here
    assert log() is None


# -- the disk ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partly", [False, True])
def test_a_write_that_fails_once_is_repeated_by_the_ordinary_path(side: Side, disk: RefusingDisk, partly: bool) -> None:
    producer = Producer(side)
    producer.warm()
    end_offset, disk.partly = partition_of(side).end_offset, partly
    disk.refusals["write_some"] = [True]
    assert producer.send(batches=[plain_batch(1)]) == [(0, 0, end_offset)]
    log = partition_of(side).log
    assert [header.base_offset for header in headers_from(log, end_offset)] == [end_offset]
    assert disk.size(log.segments.active.file) == log.segments.size_bytes
    assert is_taken(side, producer.send)


def test_a_write_that_fails_again_is_reported_as_ever(side: Side, disk: RefusingDisk) -> None:
    producer = Producer(side)
    producer.warm()
    end_offset = partition_of(side).end_offset
    disk.refusals["write_some"], disk.partly = [True, True], True
    assert producer.send() == [(0, STORAGE_ERROR, -1)]
    log = partition_of(side).log
    assert (log.end_offset, log.offline_reason) == (end_offset, "")
    assert disk.size(log.segments.active.file) == log.segments.size_bytes
    assert producer.send() == [(0, 0, end_offset)]


def test_where_one_of_several_partitions_fails_none_is_written_twice(side: Side, disk: RefusingDisk) -> None:
    producer = Producer(side)
    producer.warm(0, 1, 2)
    ends = [partition_of(side, index).end_offset for index in range(3)]
    disk.refusals["write_some"] = [False, True]
    assert producer.send(0, 1, 2) == [(index, 0, ends[index]) for index in range(3)]
    for index in range(3):
        partition = partition_of(side, index)
        assert partition.end_offset == ends[index] + 2
        assert disk.size(partition.log.segments.active.file) == partition.log.segments.size_bytes


def test_a_numbered_batch_whose_write_failed_is_not_a_duplicate(side: Side, disk: RefusingDisk) -> None:
    producer = Producer(side)
    for sequence in range(3):
        producer.send(batches=[produced(1, sequence)])
    disk.refusals["write_some"] = [True, True]
    assert producer.send(batches=[produced(1, 3)]) == [(0, STORAGE_ERROR, -1)]
    assert producer.send(batches=[produced(1, 3)]) == [(0, 0, 3)]
    assert producer.send(batches=[produced(1, 3)]) == [(0, 0, 3)], "now it is one"
    assert partition_of(side).end_offset == 4


def test_a_write_that_cannot_be_taken_back_takes_the_partition_offline_and_who_waits_is_told(
    side: Side, disk: RefusingDisk
) -> None:
    producer = Producer(side)
    producer.warm()
    partition, told = partition_of(side), []
    side.engine.context.high_watermark.when_visible(partition, partition.end_offset + 1, told.append)
    disk.refusals = {"write_some": [True], "truncate": [True]}
    assert producer.send() == [(0, STORAGE_ERROR, -1)]
    assert partition.log.offline_reason
    assert [type(error) for error in told] == [StorageError]
    assert 1 not in side.closed


def test_a_defect_behind_the_write_costs_the_partition_and_the_connection(
    side: Side, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    producer = Producer(side)
    producer.warm()
    partition = partition_of(side)

    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(SegmentIndex, "observe_batch", fail)
    side.feed(1, producer.frame(0))
    with pytest.raises(StorageError):
        side.turn()
    assert "bookkeeping after a write failed" in partition.log.offline_reason
    assert len(defects) == 1
    defects.clear()
    assert producer.answered() == []
