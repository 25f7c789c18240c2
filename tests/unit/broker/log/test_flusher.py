"""Flush before expose: when a flush starts, what it covers, which callbacks are called."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.flusher import GATHER_SECONDS, LOOK_AGAIN_SECONDS, STARTS_PER_TURN_MAX
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.validation import validate_new_batch
from logbus_broker.setting_parsers import INT64_MAX
from logbus_broker.settings import LogConfig

from tests.support.batches import plain_batch
from tests.support.engine import Harness, batch
from tests.support.logs import FailingDisk, append, append_each, begun_flush, files_with, flush, located_bytes, open_log, read_all


class Disk(FileSystem):
    failing = False
    opens_nothing = False

    def __init__(self) -> None:
        self.synced_directories: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        if self.opens_nothing:
            raise OSError(errno.EMFILE, "Too many open files")
        super().sync_directory(path)
        self.synced_directories.append(path)

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


def write(broker: Harness, partition: Partition) -> None:
    raw = batch(b"a")
    partition.stage(validate_new_batch(memoryview(raw), message_bytes_max=1 << 20, now_ms=broker.clock.now_ms()))
    partition.write_staged()
    broker.engine.context.flusher.appended(partition, len(raw))


def write_and_wait(broker: Harness, partition: Partition) -> list[StorageError | None]:
    """Append a record. What whoever waits for it is told, once that has happened."""
    outcomes: list[StorageError | None] = []
    write(broker, partition)
    broker.engine.context.high_watermark.when_visible(partition, partition.end_offset, outcomes.append)
    return outcomes


def test_who_waits_is_told_when_his_offset_is_flushed_and_not_before(broker: Harness, partition: Partition) -> None:
    outcomes = write_and_wait(broker, partition)
    broker.turn()
    assert outcomes == []
    broker.settle()
    assert outcomes == [None]


def test_a_waiter_beyond_the_flush_in_flight_gets_the_next_one(broker: Harness, partition: Partition) -> None:
    first = write_and_wait(broker, partition)
    broker.turn()
    second = write_and_wait(broker, partition)
    broker.thread_pool.run()
    broker.turn()
    assert (first, second) == ([None], [])
    broker.settle(after_ms=1)
    assert (first, second) == ([None], [None])


def test_those_who_were_answered_together_are_waited_for_and_flushed_together(broker: Harness, partition: Partition) -> None:
    outcomes = [write_and_wait(broker, partition) for _ in range(3)]
    broker.settle()
    for _ in range(2):
        outcomes.append(write_and_wait(broker, partition))
        broker.turn()
        assert not broker.thread_pool.jobs
    outcomes.append(write_and_wait(broker, partition))
    broker.turn()
    assert len(broker.thread_pool.jobs) == 1
    broker.settle()
    assert outcomes == [[None]] * 6


def test_who_does_not_come_back_is_waited_for_a_moment_only(broker: Harness, partition: Partition) -> None:
    outcomes = [write_and_wait(broker, partition) for _ in range(3)]
    broker.settle()
    outcomes.append(write_and_wait(broker, partition))
    broker.turn()
    assert not broker.thread_pool.jobs
    assert broker.engine.context.flusher.next_deadline() == broker.clock.monotonic() + GATHER_SECONDS
    broker.settle(after_ms=1)
    assert outcomes == [[None]] * 4


def test_a_producer_alone_never_waits_for_others(broker: Harness, partition: Partition) -> None:
    for _ in range(3):
        outcomes = write_and_wait(broker, partition)
        broker.turn()
        assert len(broker.thread_pool.jobs) == 1
        broker.settle()
        assert outcomes == [None]


def test_an_interval_that_is_lowered_applies_to_what_was_written_before(broker: Harness) -> None:
    broker.create("slow", flush_ms=str(INT64_MAX))
    partition = broker.engine.partitions.get("slow", 0)
    write(broker, partition)
    broker.settle(after_ms=3_600_000)
    assert partition.visible_offset == 0
    partition.log.reconfigure(replace(partition.log.config, flush_interval_ms=100))
    write(broker, partition)
    assert broker.engine.next_deadline() <= broker.clock.monotonic() + LOOK_AGAIN_SECONDS
    broker.settle(after_ms=int(LOOK_AGAIN_SECONDS * 1000))
    assert partition.visible_offset == 2


def test_nothing_is_left_of_deleted_partitions_however_long_their_interval(broker: Harness) -> None:
    broker.create("slow", flush_ms=str(INT64_MAX))
    write(broker, broker.engine.partitions.get("slow", 0))
    broker.turn()
    assert broker.delete("slow").error_code == 0
    broker.settle(after_ms=int(LOOK_AGAIN_SECONDS * 1000))
    assert broker.engine.context.flusher._deadlines == []


def test_a_loop_that_sleeps_wakes_for_the_interval_and_at_once_for_a_waiter(broker: Harness, partition: Partition) -> None:
    flusher = broker.engine.context.flusher
    assert flusher.next_deadline() == inf
    write(broker, partition)
    assert flusher.next_deadline() == broker.clock.monotonic() + 1.0
    flusher.request(partition)
    assert flusher.next_deadline() == broker.clock.monotonic()


def test_a_loop_sleeps_while_a_flush_takes_longer_than_the_interval_of_what_is_written_meanwhile(
    broker: Harness, partition: Partition
) -> None:
    flusher = broker.engine.context.flusher
    for _ in range(2):  # the second while the flush of the first is in progress
        write(broker, partition)
        broker.turn(after_ms=1_000)
    assert flusher.next_deadline() == inf
    broker.settle()
    assert partition.visible_offset == partition.end_offset == 2


def test_a_failed_flush_tells_its_waiters_and_takes_the_partition_offline(
    broker: Harness, partition: Partition, disk: Disk
) -> None:
    outcomes = write_and_wait(broker, partition)
    disk.failing = True
    broker.settle()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], StorageError)
    assert partition.visible_offset == 0
    with pytest.raises(StorageError):
        write(broker, partition)


def test_a_partition_deleted_during_its_flush_is_forgotten(broker: Harness, partition: Partition) -> None:
    outcomes = write_and_wait(broker, partition)
    broker.thread_pool.flushes_wait = True
    broker.turn()
    assert broker.delete("clicks").error_code == 0
    broker.settle()
    assert [type(error) for error in outcomes] == [StorageError]
    assert broker.engine.context.flusher.next_deadline() == inf


def test_a_partition_flushed_for_a_waiter_and_written_again_waits_its_whole_interval(
    broker: Harness, partition: Partition
) -> None:
    flusher = broker.engine.context.flusher
    write(broker, partition)
    broker.clock.advance_ms(600)
    flusher.request(partition)
    broker.settle()
    write(broker, partition)
    broker.settle(after_ms=999)
    assert partition.visible_offset == 1
    broker.settle(after_ms=1)
    assert partition.visible_offset == 2


def defect(*_: object, **__: object) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("is_failing", [False, True])
def test_one_who_cannot_be_told_keeps_nobody_else_from_being_told(
    broker: Harness, partition: Partition, disk: Disk, defects: list[str], is_failing: bool
) -> None:
    outcomes: list[type] = []
    write(broker, partition)
    for then in (lambda error: outcomes.append(type(error)), defect, lambda error: outcomes.append(type(error))):
        broker.engine.context.high_watermark.when_visible(partition, 1, then)
    disk.failing = is_failing
    broker.settle()
    assert outcomes == [StorageError if is_failing else type(None)] * 2
    assert partition.visible_offset == (0 if is_failing else 1)
    assert defects
    defects.clear()


@pytest.mark.parametrize("step", ["begin_flush", "thread_pool.flush", "finish_flush"])
def test_a_flush_that_fails_by_a_defect_takes_its_partition_offline_and_no_other(
    broker: Harness, partition: Partition, monkeypatch: pytest.MonkeyPatch, step: str, defects: list[str]
) -> None:
    broker.create("views")
    other = broker.engine.partitions.get("views", 0)
    if step == "thread_pool.flush":
        real = broker.thread_pool.flush
        failing = lambda ticket, outcome: real(ticket, outcome) if ticket.active in other.log.segments else defect()  # noqa: E731
        monkeypatch.setattr(broker.thread_pool, "flush", failing)
    else:
        monkeypatch.setattr(partition.log, step, defect)
    failed, told = write_and_wait(broker, partition), write_and_wait(broker, other)
    broker.settle()
    assert ([type(error) for error in failed], told) == ([StorageError], [None])
    defects.clear()
    assert "a defect" in partition.log.offline_reason
    assert partition.visible_offset == 0
    assert other.visible_offset == 1


def test_who_waits_is_told_when_the_log_goes_offline_while_its_flush_runs(broker: Harness, partition: Partition) -> None:
    outcomes = write_and_wait(broker, partition)
    broker.turn()
    partition.log.go_offline("the write after it could not be taken back")
    broker.settle()
    assert [type(error) for error in outcomes] == [StorageError]


def test_a_deleted_partition_is_let_go_at_once_however_long_its_interval(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks", flush_ms=str(1 << 60))
    partition = broker.engine.partitions.get("clicks", 0)
    for _ in range(2):
        write_and_wait(broker, partition)
    broker.settle()
    write(broker, partition)
    gone = weakref.ref(partition)
    del partition
    broker.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["clicks"], timeout_ms=1000)
    broker.settle()
    gc.collect()
    assert gone() is None


def test_thousands_of_flushes_are_started_over_several_turns(broker: Harness) -> None:
    count = STARTS_PER_TURN_MAX * 2 + 10
    broker.create("wide", count)
    partitions = [broker.engine.partitions.get("wide", index) for index in range(count)]
    for partition in partitions:
        write(broker, partition)
        broker.engine.context.flusher.request(partition)
    started = []
    for _ in range(3):
        broker.turn()
        started.append(len(broker.thread_pool.jobs))
        assert sum(started) == count or broker.engine.next_deadline() <= broker.clock.monotonic()
        broker.thread_pool.run()
    assert started == [STARTS_PER_TURN_MAX, STARTS_PER_TURN_MAX, 10]
    broker.settle()
    assert all(partition.visible_offset == partition.end_offset > 0 for partition in partitions)


def test_a_flush_for_which_no_descriptor_is_left_is_made_later_and_nothing_goes_offline(
    broker: Harness, partition: Partition, disk: Disk
) -> None:
    """The first flush of a log also syncs its directory, which has to be opened for that."""
    outcomes = write_and_wait(broker, partition)
    disk.opens_nothing, disk.synced_directories = True, []
    broker.settle()
    assert (outcomes, partition.log.offline_reason, partition.visible_offset) == ([], "", 0)
    write(broker, partition)
    disk.opens_nothing = False
    broker.flush()
    assert outcomes == [None]
    assert partition.visible_offset == partition.end_offset == 2
    assert disk.synced_directories == [partition.log.directory]


def test_a_sealed_segment_is_flushed_at_once_however_long_the_interval_is(tmp_path: Path) -> None:
    """It keeps its descriptor until then."""
    log = LogConfig(segment_bytes=100, flush_interval_ms=INT64_MAX, flush_interval_messages=INT64_MAX)
    broker = Harness(tmp_path, log=log)
    broker.create("clicks")
    partition = broker.engine.partitions.get("clicks", 0)
    write(broker, partition)
    broker.settle()
    assert partition.visible_offset == 0
    write(broker, partition)
    broker.settle()
    assert partition.visible_offset == 2
    assert not partition.log.unflushed


def test_flushes_start_in_the_order_in_which_they_were_wanted(broker: Harness) -> None:
    """And not in the order of memory addresses: the same seed must give the same history."""
    broker.create("wide", 50)
    order = [7 * index % 50 for index in range(50)]
    for index in order:
        partition = broker.engine.partitions.get("wide", index)
        write(broker, partition)
        broker.engine.context.flusher.request(partition)
    broker.thread_pool.flushed.clear()
    broker.turn()
    assert [int(directory.name.rpartition("-")[2]) for directory in broker.thread_pool.flushed] == order


class RecordingDisk(FailingDisk):
    """Records which files were flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def sync_data(self, file: OpenFile) -> None:
        super().sync_data(file)
        self.flushed.append(file.path.name)


def test_nothing_dirty_needs_no_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.begin_flush() is None
    append(log, plain_batch())
    flush(log)
    assert log.begin_flush() is None


def test_one_flush_runs_at_a_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, plain_batch())
    ticket = begun_flush(log)
    append(log, plain_batch())
    assert log.begin_flush() is None
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed_offset == 1, "what came after the flush began waits for the next one"
    assert log.begin_flush() is not None


def test_a_ticket_runs_in_another_thread_while_the_log_grows(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=500)
    append(log, plain_batch())
    for _ in range(20):
        ticket = begun_flush(log)
        thread = threading.Thread(target=ticket.run)
        thread.start()
        append_each(log, 10)
        thread.join()
        log.finish_flush(ticket)
    assert log.flushed_offset == 191
    assert [record.offset for record in read_all(log)] == list(range(201))


def test_a_sealed_segment_is_flushed_with_or_before_the_one_after_it(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append_each(log, 3)
    flush(log)
    logs = [name for name in disk.flushed if name.endswith(".log")]
    assert logs == [path.name for path in files_with(tmp_path, ".log")]
    assert "sync_directory" in disk.calls, "the new names are on the disk before their records are believed to be"
    assert log.flushed_offset == 3


def test_a_segment_sealed_while_a_flush_runs_waits_for_the_next(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append(log, plain_batch())
    ticket = begun_flush(log)
    append(log, plain_batch())  # seals the first segment
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed_offset == 1
    disk.flushed.clear()
    flush(log)
    assert [name for name in disk.flushed if name.endswith(".log")] == ["00000000000000000000.log", "00000000000000000001.log"]
    assert log.flushed_offset == 2
    assert located_bytes(log, 1, 100, upto_offset=2)[:8] == (1).to_bytes(8, "big")


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_a_failed_flush_takes_the_log_offline_for_good(tmp_path: Path, call: str) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append(log, plain_batch())
    flush(log)
    append(log, plain_batch())
    ticket = begun_flush(log)
    disk.failing = {call}
    with pytest.raises(StorageError, match="cannot flush") as failure:
        ticket.run()
    log.fail_flush(ticket, failure.value)
    disk.failing = set()
    assert log.flushed_offset == 1, "a failed flush is never acknowledged"
    with pytest.raises(StorageError, match="cannot flush"):
        append(log, plain_batch())
    with pytest.raises(StorageError, match="cannot flush"):
        log.begin_flush()
    with pytest.raises(StorageError, match="cannot flush"):
        log.close()


def test_indexes_that_cannot_be_saved_fail_no_flush_and_are_saved_by_the_next(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append_each(log, 2)
    disk.failing = {"write_bytes"}
    flush(log)
    assert log.flushed_offset == 2
    assert files_with(tmp_path, ".indexnote") == []
    disk.failing = set()
    append(log, plain_batch())
    flush(log)
    assert [path.stem for path in files_with(tmp_path, ".indexnote")] == ["00000000000000000000", "00000000000000000001"]


def test_a_new_log_syncs_its_directory_with_its_first_flush_and_not_before(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    assert "sync_directory" not in disk.calls
    append(log, plain_batch())
    ticket = begun_flush(log)
    assert ticket.only_file is None
    ticket.run()
    log.finish_flush(ticket)
    assert disk.calls.count("sync_directory") == 1
    append(log, plain_batch())
    ticket = begun_flush(log)
    assert ticket.only_file is not None


def test_a_flush_of_a_log_that_was_abandoned_writes_nothing_into_a_directory_that_may_be_anothers(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append_each(log, 2)
    ticket = begun_flush(log)
    log.abandon("deleted")
    ticket.run()
    assert files_with(tmp_path, ".indexnote") == []
    assert files_with(tmp_path, "leader-epoch-checkpoint") == []
