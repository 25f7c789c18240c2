"""Indexes that cannot be trusted are rebuilt, and the answers are the same as before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment_index import OFFSET_ENTRY, IndexNote
from logbus_broker.protocol.records import build_batch

from tests.support.batches import records_at
from tests.support.logs import append, crash_copy, files_with, flush, open_log, segments_in

SETTINGS = {"segment_bytes": 20_000, "index_interval_bytes": 500}
SUFFIXES = [".index", ".timeindex", ".indexnote"]
Answers = tuple[list[tuple[int, int]], list[tuple[int, int] | None]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cleanly closed log of five segments with timestamps out of order."""
    directory = tmp_path / "log"
    log = open_log(directory, **SETTINGS)
    chance = random.Random(7)
    for number in range(600):
        append(log, build_batch(records_at([number * 10 + chance.randrange(200) for _ in range(3)], value=b"v" * 20)))
    flush(log)
    log.close()
    assert len(files_with(directory, ".log")) == 5
    return directory


def reopened(directory: Path, *, clean: bool = True) -> PartitionLog:
    return open_log(directory, clean=clean, recovery_point=1800, **SETTINGS)


def answers(log: PartitionLog) -> Answers:
    """The position of every offset, and the first record at or after each of many timestamps."""
    slices = [log.locate(offset, 1, upto_offset=1800) for offset in range(1800)]
    times = [log.search_by_time(timestamp, upto_offset=1800).run() for timestamp in range(-50, 6_300, 61)]
    return [(piece.position, piece.length) for piece in slices], times


def missing(path: Path, other: Path) -> None:
    path.unlink()


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def an_entry_less(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-24])


def flipped(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)


def of_another_segment(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", [missing, empty, cut_short, an_entry_less, flipped, of_another_segment])
def test_a_wrong_index_is_rebuilt_with_identical_answers(
    directory: Path, damage: Callable[[Path, Path], None], suffix: str, clean: bool
) -> None:
    expected = answers(reopened(directory))
    paths = files_with(directory, suffix)
    originals = crash_copy(directory, directory.with_name("originals"))
    for path, other in zip(paths, reversed(files_with(originals, suffix)), strict=True):
        damage(path, other)
    assert answers(reopened(directory, clean=clean)) == expected


def test_indexes_of_an_earlier_time_are_rebuilt(tmp_path: Path) -> None:
    """A complete set of index files from when the segment was smaller: consistent, but wrong."""
    log = open_log(tmp_path / "log", index_interval_bytes=100)
    for number in range(20):
        append(log, build_batch(records_at([number])))
    log.close()
    earlier = crash_copy(tmp_path / "log", tmp_path / "earlier")
    log = open_log(tmp_path / "log", clean=True, recovery_point=20, index_interval_bytes=100)
    append(log, *[build_batch(records_at([number])) for number in range(20, 60)])
    log.close()
    for suffix in SUFFIXES:
        shutil.copyfile(files_with(earlier, suffix)[0], files_with(tmp_path / "log", suffix)[0])
    log = open_log(tmp_path / "log", clean=True, recovery_point=60, index_interval_bytes=100)
    assert [log.search_by_time(number, upto_offset=60).run() for number in range(60)] == [
        (number, number) for number in range(60)
    ]
    assert log.locate(59, 1, upto_offset=60).length > 0


def test_a_full_index_rolls_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logbus_broker.log.segment.OFFSET_INDEX_BYTES_MAX", 3 * OFFSET_ENTRY.size)
    log = open_log(tmp_path, index_interval_bytes=0)
    for number in range(8):
        append(log, build_batch(records_at([number])))
    assert segments_in(tmp_path) == [0, 4]


@pytest.mark.parametrize("data", [b"", b"not json", b"[]", b"{}", b'{"version": 1}', b"\xff\xfe", b"null"])
def test_a_note_of_another_form_is_none(data: bytes) -> None:
    assert IndexNote.decode(data) is None


def test_a_note_with_any_flipped_bit_is_none() -> None:
    data = IndexNote(log_bytes=10, largest_timestamp=1_700_000_000_000, offsets_checksum=5, times_checksum=6).encode()
    for position in range(len(data) - 1):
        for bit in range(7):
            flipped_data = bytearray(data)
            flipped_data[position] ^= 1 << bit
            assert IndexNote.decode(flipped_data) is None


@pytest.mark.parametrize("end", ["exchanged", "dropped", "abandoned"])
def test_a_segment_that_is_the_logs_no_more_writes_nothing_under_its_old_name(tmp_path: Path, end: str) -> None:
    log = open_log(tmp_path, **SETTINGS)
    for _ in range(20):
        append(log, build_batch(records_at([1] * 50, value=b"v" * 40)))
    flush(log)
    segment = log.segments.first
    for path in files_with(tmp_path, ".indexnote"):
        path.unlink()
    segment._stored = None
    assert segment.index
    if end == "exchanged":
        segment.replacement = segment
    elif end == "dropped":
        log.drop_first()
    else:
        log.abandon("deleted")
    segment.forget()
    assert files_with(tmp_path, ".indexnote") == []
