from __future__ import annotations

import errno
from pathlib import Path

import pytest
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.batch import Buffer

from tests.support.batches import plain_batch, stamped
from tests.support.logs import FailingDisk, begun_flush, flush, open_log, open_segments


def write(log: PartitionLog, batches: int = 1) -> None:
    """Append batches of five records, stamped with the log's epoch."""
    for _ in range(batches):
        view, header = stamped(plain_batch(5), log.end_offset, log.epochs.current)
        log.append([view], [header])
    flush(log)


@pytest.fixture
def three_epochs(tmp_path: Path) -> Path:
    """Epoch 0 to offset 15, 1 to 20, 2 to 40, one batch a segment."""
    for batches in (3, 1, 4):
        write(open_log(tmp_path, segment_bytes=200), batches)
    return tmp_path


def test_an_unclean_start_raises_the_epoch_and_a_clean_one_does_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.epochs.current == 0
    write(log)
    log.close()
    log = open_log(tmp_path, clean=True)
    assert log.epochs.current == 0
    write(log)
    assert open_log(tmp_path).epochs.current == 1


class RefusingTheFile(FileSystem):
    def replace_bytes(self, path: Path, data: Buffer) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def begun(directory: Path, disk: FileSystem | None = None) -> PartitionLog:
    """A log with five records of epoch 0, flushed, and five of epoch 1, which are not."""
    write(open_log(directory))
    log = open_log(directory, filesystem=disk)
    view, header = stamped(plain_batch(5), 5, 1)
    log.append([view], [header])
    return log


def test_the_file_is_written_by_the_first_flush_of_an_epoch_and_not_by_the_append(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = begun(tmp_path, disk)
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    assert log.epochs.end_offset_of(0, log.end_offset) == (0, 5)
    ticket = begun_flush(log)
    assert ticket.only_file is None
    ticket.run()
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n2\n0 0\n1 5\n", "the form that Apache Kafka writes"
    log.finish_flush(ticket)
    view, header = stamped(plain_batch(5), 10, 1)
    log.append([view], [header])
    ticket = begun_flush(log)
    assert ticket.only_file is not None, "once is enough"


def test_a_file_that_is_refused_fails_no_flush_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    log = begun(tmp_path, disk)
    disk.failing = {"write_bytes"}
    flush(log)
    write(log, 2)
    assert log.flushed_offset == 20
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    assert len([record for record in caplog.records if LEADER_EPOCHS in record.getMessage()]) == 1
    disk.failing = set()
    write(log)
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n2\n0 0\n1 5\n"


@pytest.mark.parametrize("clean", [True, False])
def test_an_epoch_whose_file_was_refused_is_never_given_again_although_the_last_segment_is_empty(
    tmp_path: Path, clean: bool
) -> None:
    log = begun(tmp_path, RefusingTheFile())
    log.roll()
    flush(log)
    assert log.flushed_offset == 10, "records of epoch 1 are visible"
    if clean:
        log.close()
    again = open_log(tmp_path, clean=clean, recovery_point=10)
    assert again.epochs.written.entries == [(0, 0), (1, 5)]
    assert again.epochs.current == (1 if clean else 2)


def test_a_clean_stop_writes_the_file_too(tmp_path: Path) -> None:
    begun(tmp_path).close()
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n2\n0 0\n1 5\n"


def test_each_epoch_ends_where_the_next_began(three_epochs: Path) -> None:
    log = open_log(three_epochs, segment_bytes=200)
    assert [log.epochs.end_offset_of(epoch, log.end_offset) for epoch in range(5)] == [
        (0, 15),
        (1, 20),
        (2, 40),
        (3, 40),
        (-1, -1),
    ]
    write(log)
    assert [log.epochs.end_offset_of(epoch, log.end_offset) for epoch in range(5)] == [
        (0, 15),
        (1, 20),
        (2, 40),
        (3, 45),
        (-1, -1),
    ]


@pytest.mark.parametrize("content", [None, b"", b"0\n2\n0 0\n", b"0\n1\n0 zero\n", b"\xff", b"0\n1\n0 0\n", b"0\n2\n1 5\n0 7\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_is_missing_empty_corrupt_or_stale_is_rebuilt_from_the_log(
    three_epochs: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, clean: bool
) -> None:
    if content is None:
        (three_epochs / LEADER_EPOCHS).unlink()
    else:
        (three_epochs / LEADER_EPOCHS).write_bytes(content)
    log = open_log(three_epochs, clean=clean, segment_bytes=200)
    assert log.epochs.written.entries == [(0, 0), (1, 15), (2, 20)]
    is_damaged = content is not None and LeaderEpochs.decode(content) is None
    assert ("leader-epoch-checkpoint is damaged: rebuilt from the log's batches" in caplog.text) == is_damaged
    if is_damaged:
        assert (three_epochs / LEADER_EPOCHS).read_bytes() == log.epochs.written.encode()


@pytest.mark.parametrize("entry", [f"{1 << 31} 0", "-1 0", f"0 {1 << 63}", "0 1_0", "+1 0"])
def test_an_epoch_that_no_batch_has_room_for_is_not_believed(entry: str) -> None:
    assert LeaderEpochs.decode(f"0\n1\n{entry}\n".encode()) is None


def test_rebuilding_leaves_no_file_open(three_epochs: Path) -> None:
    open_log(three_epochs, segment_bytes=200).close()
    (three_epochs / LEADER_EPOCHS).unlink()
    log = open_log(three_epochs, segment_bytes=200, clean=True)
    assert log.epochs.written.entries == [(0, 0), (1, 15), (2, 20)]
    assert open_segments(three_epochs) == [str(log.segments.active.path(".log"))]


def test_an_epoch_whose_records_were_lost_is_forgotten(three_epochs: Path) -> None:
    for path in sorted(three_epochs.glob("*.log"))[4:]:
        path.unlink()
    log = open_log(three_epochs, segment_bytes=200)
    assert log.end_offset == 20
    assert log.epochs.written.entries == [(0, 0), (1, 15)]


def test_an_epoch_older_than_all_ends_where_the_first_begins() -> None:
    epochs = LeaderEpochs([(3, 100), (5, 200)])
    assert [epochs.end_offset_of(epoch, 300) for epoch in (1, 3, 4, 5, 6, -1)] == [
        (1, 100),
        (3, 200),
        (3, 200),
        (5, 300),
        (-1, -1),
        (-1, -1),
    ]
