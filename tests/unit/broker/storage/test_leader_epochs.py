from __future__ import annotations

from pathlib import Path

import pytest

from broker.storage.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from broker.storage.partition_log import PartitionLog
from tests.support.batches import plain_batch, stamped
from tests.support.logs import FailingDisk, flush, open_log


def write(log: PartitionLog, batches: int = 1) -> None:
    """Batches of five records, stamped with the log's epoch."""
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


def test_the_file_is_written_before_the_first_append_of_an_epoch(tmp_path: Path) -> None:
    write(open_log(tmp_path))
    disk = FailingDisk()
    log = open_log(tmp_path, filesystem=disk)
    disk.failing = {"sync_data"}
    view, header = stamped(plain_batch(5), 5, 1)
    size = (tmp_path / "00000000000000000000.log").stat().st_size
    with pytest.raises(Exception, match="cannot write .*leader-epoch-checkpoint"):
        log.append([view], [header])
    assert (tmp_path / "00000000000000000000.log").stat().st_size == size
    disk.failing = set()
    log.append([view], [header])
    assert (tmp_path / LEADER_EPOCHS).read_text() == "0\n2\n0 0\n1 5\n", "the form that Apache Kafka writes"


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
    three_epochs: Path, content: bytes | None, clean: bool
) -> None:
    if content is None:
        (three_epochs / LEADER_EPOCHS).unlink()
    else:
        (three_epochs / LEADER_EPOCHS).write_bytes(content)
    log = open_log(three_epochs, clean=clean, segment_bytes=200)
    assert log.epochs.written.entries == [(0, 0), (1, 15), (2, 20)]


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
