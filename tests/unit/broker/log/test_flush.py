from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.disk.filesystem import OpenFile
from broker.errors import StorageError
from tests.support.batches import plain_batch
from tests.support.logs import FailingDisk, append, files_with, flush, located_bytes, open_log, read_all


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
    ticket = log.begin_flush()
    assert ticket is not None
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
        ticket = log.begin_flush()
        assert ticket is not None
        thread = threading.Thread(target=ticket.run)
        thread.start()
        for _ in range(10):
            append(log, plain_batch())
        thread.join()
        log.finish_flush(ticket)
    assert log.flushed_offset == 191
    assert [record.offset for record in read_all(log)] == list(range(201))


def test_a_sealed_segment_is_flushed_with_or_before_the_one_after_it(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    for _ in range(3):
        append(log, plain_batch())
    flush(log)
    logs = [name for name in disk.flushed if name.endswith(".log")]
    assert logs == [path.name for path in files_with(tmp_path, ".log")]
    assert "sync_directory" in disk.calls, "the new names are on the disk before their records are believed to be"
    assert log.flushed_offset == 3


def test_a_segment_sealed_while_a_flush_runs_waits_for_the_next(tmp_path: Path) -> None:
    disk = RecordingDisk()
    log = open_log(tmp_path, filesystem=disk, segment_bytes=100)
    append(log, plain_batch())
    ticket = log.begin_flush()
    assert ticket is not None
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
    ticket = log.begin_flush()
    assert ticket is not None
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
    append(log, plain_batch())
    append(log, plain_batch())
    disk.failing = {"write_bytes"}
    flush(log)
    assert log.flushed_offset == 2
    assert files_with(tmp_path, ".indexnote") == []
    disk.failing = set()
    append(log, plain_batch())
    flush(log)
    assert [path.name for path in files_with(tmp_path, ".indexnote")] == [
        "00000000000000000000.indexnote",
        "00000000000000000001.indexnote",
    ]


def test_a_new_log_syncs_its_directory_with_its_first_flush_and_not_before(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    assert "sync_directory" not in disk.calls
    append(log, plain_batch())
    ticket = log.begin_flush()
    assert ticket is not None
    assert ticket.only_file is None
    ticket.run()
    log.finish_flush(ticket)
    assert disk.calls.count("sync_directory") == 1
    append(log, plain_batch())
    ticket = log.begin_flush()
    assert ticket is not None
    assert ticket.only_file is not None


def test_a_flush_of_a_log_that_was_abandoned_writes_nothing_into_a_directory_that_may_be_anothers(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    append(log, plain_batch())
    append(log, plain_batch())
    ticket = log.begin_flush()
    assert ticket is not None
    log.abandon("deleted")
    ticket.run()
    assert files_with(tmp_path, ".indexnote") == []
    assert files_with(tmp_path, "leader-epoch-checkpoint") == []
