from __future__ import annotations

import os
import random
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from logbus_broker.errors import OffsetOutOfRange, StorageError
from logbus_broker.filesystem import FileSlice, FileSystem
from logbus_broker.log.leader_epochs import LEADER_EPOCHS
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.support.batches import NOW_MS, plain_batch, stamped
from tests.support.logs import (
    FailingDisk,
    begun_flush,
    compact,
    files_with,
    flush,
    headers_from,
    open_log,
    open_segments,
    pass_over,
    read_all,
    segments_in,
    truncate,
)

LARGE = {"segment_bytes": 1 << 20}
SMALL = {"segment_bytes": 200}


def write(log: PartitionLog, batches: int = 1) -> None:
    """Append batches of five records of the log's epoch."""
    for _ in range(batches):
        view, header = stamped(plain_batch(5), log.end_offset, log.epochs.current)
        log.append([view], [header])


def left_in(piece: FileSlice) -> bytes:
    """What a connection that still has to send this slice would send now."""
    return os.pread(piece.fileno(), piece.length, piece.position)


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_all(log)]


def append_replica(log: PartitionLog, offset: int, epoch: int, batch: bytearray) -> None:
    view, header = stamped(batch, offset, epoch)
    log.append_replica(view, [header])


def fail_to_truncate(log: PartitionLog, disk: FailingDisk, offset: int, call: str) -> None:
    ticket = log.begin_truncation(offset)
    disk.failing = {call}
    with pytest.raises(StorageError) as failure:
        ticket.run()
    log.fail_truncation(ticket, failure.value)
    disk.failing = set()


def flushed(directory: Path, batches: int, **config: object) -> PartitionLog:
    log = open_log(directory, **config)  # type: ignore[arg-type]
    write(log, batches)
    flush(log)
    return log


@pytest.mark.parametrize("config", [LARGE, SMALL])
@pytest.mark.parametrize(("offset", "end"), [(20, 20), (12, 10), (10, 10), (5, 5), (3, 0), (0, 0), (40, 20)])
def test_a_log_ends_where_its_last_whole_batch_below_the_cut_does(
    tmp_path: Path, config: dict[str, int], offset: int, end: int
) -> None:
    log = flushed(tmp_path, 4, **config)
    truncate(log, offset)
    assert (log.end_offset, log.flushed_offset, log.log_start_offset) == (end, end, 0)
    assert offsets(log) == list(range(end))
    write(log, 2)
    assert offsets(log) == list(range(end + 10))


@pytest.mark.parametrize("config", [LARGE, SMALL])
def test_an_answer_on_its_way_never_goes_on_with_what_is_written_after_the_cut(tmp_path: Path, config: dict[str, int]) -> None:
    log = flushed(tmp_path, 4, **config)
    pieces = [log.locate(offset, 1 << 20, upto_offset=20) for offset in (0, 5, 10, 15)]
    before = [left_in(piece) for piece in pieces]
    truncate(log, 10)
    append_replica(log, 10, 1, plain_batch(5, value=b"other"))
    for piece, old in zip(pieces, before, strict=True):
        assert old.startswith(left_in(piece)), "what is left of the old bytes, and then the end, which closes the connection"


def test_what_is_kept_is_on_the_disk_after_a_cut_though_nobody_flushed_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, **SMALL)
    write(log, 4)
    assert log.flushed_offset == 0
    disk.calls.clear()
    truncate(log, 15)
    assert log.flushed_offset == 15
    assert disk.calls.count("sync_data") == 3, "each of the segments that are left"


def test_a_cut_of_what_nobody_flushed_needs_no_mark(tmp_path: Path) -> None:
    log = flushed(tmp_path, 2)
    write(log, 2)
    truncate(log, 10)
    assert not files_with(tmp_path, ".cut")
    truncate(log, 5)
    assert [path.name for path in files_with(tmp_path, ".cut")] == ["00000000000000000005-1.cut"]


def test_epochs_are_cut_also_where_the_log_is_not(tmp_path: Path) -> None:
    log = flushed(tmp_path, 2)
    log.epochs.begin(4)
    log.epochs.note(10)  # its first write failed
    log.epochs.save()
    assert log.end_of_epoch(4) == (4, 10)
    truncate(log, 10)
    assert log.end_of_epoch(4) == (-1, -1)
    assert log.end_of_epoch(0) == (0, 10)
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    log.epochs.begin(5)
    write(log)
    assert [log.end_of_epoch(epoch) for epoch in (0, 4, 5)] == [(0, 10), (0, 10), (5, 15)]


def test_a_log_that_begins_anew_is_empty_there_and_knows_no_epoch(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4, **SMALL)
    truncate(log, 100, resets=True)
    assert (log.log_start_offset, log.end_offset, log.flushed_offset) == (100, 100, 100)
    assert log.end_of_epoch(0) == (0, 100)
    assert segments_in(tmp_path) == [100]
    append_replica(log, 100, 7, plain_batch(5))
    assert (offsets(log), log.epochs.written.entries) == ([100, 101, 102, 103, 104], [(7, 100)])
    truncate(log, 3, resets=True)
    assert (log.log_start_offset, log.end_offset) == (3, 3)


def test_a_cut_before_the_logs_start_begins_the_log_anew_there(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4, **SMALL)
    log.delete_before(12)
    truncate(log, 7)
    assert (log.log_start_offset, log.end_offset) == (7, 7)


def test_a_cut_within_the_batch_in_which_the_log_begins_leaves_nothing(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4)
    log.delete_before(12)
    truncate(log, 13)
    assert (log.log_start_offset, log.end_offset) == (13, 13)


def test_old_checkpoints_do_not_make_a_log_that_was_cut_look_damaged(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4, **SMALL)
    truncate(log, 5)
    again = open_log(tmp_path, recovery_point=20, log_start_offset=0, **SMALL)
    assert (again.offline_reason, again.end_offset) == ("", 5)
    truncate(again, 2, resets=True)
    last = open_log(tmp_path, recovery_point=20, log_start_offset=5, **SMALL)
    assert (last.offline_reason, last.log_start_offset, last.end_offset) == ("", 2, 2)


def test_the_mark_of_a_cut_goes_when_checkpoints_know_of_it(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, broker_id=0, filesystem=FileSystem(), new_id=uuid4)
    path = directory.make_partition("t", 0, UUID(int=1))
    log = flushed(path, 4)
    early = directory.checkpoint_job({("t", 0): log})
    truncate(log, 10)
    early()
    assert files_with(path, ".cut"), "these checkpoints are older than the cut"
    late = directory.checkpoint_job({("t", 0): log})
    truncate(log, 5)
    late()
    assert [mark.name for mark in files_with(path, ".cut")] == ["00000000000000000005-1.cut"], "they know of the first cut alone"
    directory.checkpoint_job({("t", 0): log})()
    assert not files_with(path, ".cut")
    truncate(log, 0)
    log.close()
    directory.checkpoint_job({("t", 0): log})()
    assert not files_with(path, ".cut"), "a stop in good order too"


def test_the_mark_of_a_cut_stays_where_the_log_is_not_the_directorys_any_more(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, broker_id=0, filesystem=FileSystem(), new_id=uuid4)
    path = directory.make_partition("t", 0, UUID(int=1))
    log = flushed(path, 4)
    truncate(log, 10)
    job = directory.checkpoint_job({("t", 0): log})
    log.abandon("t-0 was deleted")
    job()
    assert files_with(path, ".cut"), "perhaps of a new topic of this name"


def test_who_wants_to_cut_waits_for_the_flush_that_is_under_way(tmp_path: Path) -> None:
    log = flushed(tmp_path, 2)
    write(log)
    ticket = begun_flush(log)
    answered: list[str] = []
    log.when_quiet(lambda: answered.append("first"))
    assert not answered
    ticket.run()
    log.finish_flush(ticket)
    assert answered == ["first"]
    log.when_quiet(lambda: answered.append("second"))
    assert answered == ["first", "second"], "at once, where nothing is under way"


def test_who_wants_to_cut_waits_for_another_cut(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4)
    ticket = log.begin_truncation(10)
    answered: list[int] = []
    log.when_quiet(lambda: answered.append(log.end_offset))
    ticket.run()
    assert not answered
    log.finish_truncation(ticket)
    assert answered == [10]


def test_who_wants_to_cut_is_told_when_the_log_goes_offline(tmp_path: Path) -> None:
    log = flushed(tmp_path, 2)
    write(log)
    ticket = begun_flush(log)
    answered: list[str] = []
    log.when_quiet(lambda: answered.append(log.offline_reason))
    log.fail_flush(ticket, StorageError("no disk"))
    assert answered == ["no disk"]


def test_a_log_that_is_to_be_cut_begins_no_compaction(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, **SMALL)
    write(log, 3)
    flush(log)
    ticket = log.begin_flush()
    work = pass_over(log)
    assert ticket is None
    assert work is not None
    log.when_quiet(lambda: None)
    log.end_compaction()
    assert log.is_quiet
    log.begin_truncation(10)
    assert pass_over(log) is None


def test_nothing_is_flushed_or_deleted_while_a_log_is_cut(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4, **SMALL, retention_bytes=1)
    write(log)
    ticket = log.begin_truncation(10)
    assert log.begin_flush() is None
    assert apply_retention(log, NOW_MS) == 0
    ticket.run()
    log.finish_truncation(ticket)
    assert log.flushed_offset == log.end_offset == 10


def test_a_log_that_is_truncating_cannot_stop_in_good_order(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4)
    log.begin_truncation(10)
    with pytest.raises(StorageError, match="is being truncated"):
        log.close()


@pytest.mark.parametrize("call", ["write_bytes", "sync_directory"])
def test_a_disk_that_refuses_before_anything_is_cut_leaves_the_log_as_it_was(tmp_path: Path, call: str) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, **SMALL)
    write(log, 4)
    flush(log)
    fail_to_truncate(log, disk, 10, call)
    assert (log.offline_reason, log.end_offset) == ("", 20)
    assert offsets(log) == list(range(20))
    truncate(log, 10)
    assert offsets(log) == list(range(10))


@pytest.mark.parametrize("call", ["rename", "truncate", "sync_data", "create"])
def test_a_disk_that_refuses_in_the_middle_takes_the_log_offline_until_the_next_start(tmp_path: Path, call: str) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=400)
    write(log, 9)
    flush(log)
    fail_to_truncate(log, disk, 5, call)
    assert "cannot truncate" in log.offline_reason
    again = open_log(tmp_path, recovery_point=45)
    assert again.offline_reason == ""
    assert offsets(again) == list(range(again.end_offset))
    truncate(again, 5)
    assert offsets(again) == list(range(5))


def test_a_log_deleted_while_it_is_cut_is_left_alone(tmp_path: Path) -> None:
    log = flushed(tmp_path / "t-0", 4, **SMALL)
    ticket = log.begin_truncation(7)
    log.abandon("t-0 was deleted")
    (tmp_path / "t-0").rename(tmp_path / "t-0-delete")
    other = flushed(tmp_path / "t-0", 4, **SMALL)
    ticket.run()
    log.finish_truncation(ticket)
    assert offsets(other) == list(range(20))
    assert not files_with(tmp_path / "t-0", ".cut")
    assert offsets(open_log(tmp_path / "t-0", recovery_point=20)) == list(range(20))


def test_a_search_that_began_before_the_cut_ends_well(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4)
    search = log.search_by_time(0, upto_offset=10)
    truncate(log, 10)
    assert search.run() == (0, NOW_MS)


def test_a_cut_leaves_no_file_open_that_is_not_written(tmp_path: Path) -> None:
    log = flushed(tmp_path, 4, **SMALL)
    truncate(log, 12)
    write(log)
    flush(log)
    assert open_segments(tmp_path) == [str(tmp_path / "00000000000000000010.log")]


def test_what_consumers_may_not_see_is_neither_deleted_nor_compacted(tmp_path: Path) -> None:
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
    log = flushed(tmp_path / "a", 4, **SMALL, **config)
    work = pass_over(log, limit_offset=10)
    assert work is not None
    assert [segment.base_offset for segment in work.segments] == [0, 5]
    old = flushed(tmp_path / "b", 4, **SMALL, retention_bytes=1)
    assert apply_retention(old, NOW_MS, limit_offset=9) == 1
    with pytest.raises(OffsetOutOfRange, match="the log has 5 to 9"):
        old.delete_before(10, limit_offset=9)
    assert apply_retention(old, NOW_MS) == 2


def test_compaction_keeps_the_batch_with_which_a_leader_epoch_began(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for epoch, offset in ((0, 0), (2, 1), (2, 2), (5, 3), (5, 4)):
        append_replica(log, offset, epoch, keyed())
    log.roll()
    flush(log)
    compact(log)
    assert [(header.base_offset, header.leader_epoch) for header in headers_from(log, 0)] == [(1, 2), (3, 5), (4, 5)]
    assert offsets(log) == [4]


def keyed() -> bytearray:
    return build_batch([NewRecord(timestamp=NOW_MS, key=b"k", value=b"v")])


@pytest.mark.parametrize("seed", range(20))
def test_readers_at_the_end_are_given_what_is_there_however_the_log_is_cut_and_rolled(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = open_log(tmp_path, segment_bytes=chance.choice([200, 700, 1 << 20]))
    batches: dict[int, bytes] = {}
    readers = [0, 0, 0]
    for number in range(60):
        for _ in range(chance.randint(0, 3)):
            offset = log.end_offset
            view, header = stamped(plain_batch(5, value=b"%d" % number), offset, log.epochs.current)
            log.append([view], [header])
            batches[offset] = bytes(view)
        if not chance.randrange(6):
            flush(log)
            truncate(log, max(0, log.end_offset - chance.randrange(0, 25)))
            batches = {offset: batch for offset, batch in batches.items() if offset < log.end_offset}
            readers = [min(offset, log.end_offset) for offset in readers]
        for reader, offset in enumerate(readers):
            upto = chance.choice([log.end_offset, max(offset, log.end_offset - 5)])
            piece = log.locate(offset, chance.choice([1, 250, 1 << 20]), upto_offset=upto)
            remaining, expected = left_in(piece), b"".join(batches[at] for at in range(offset, upto, 5))
            assert expected.startswith(remaining)
            assert bool(remaining) == bool(expected)
            while readers[reader] < upto and remaining.startswith(batch := batches[readers[reader]]):
                remaining, readers[reader] = remaining[len(batch) :], readers[reader] + 5
