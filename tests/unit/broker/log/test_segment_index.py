"""The sparse indexes: their bytes, their searches, and stored ones, which give the same results as loaded ones with a few small
reads, and are never used for another segment.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from pathlib import Path

import pytest
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment import Segment
from logbus_broker.log.segment_index import BLOCK_ENTRIES, OffsetIndex, StoredIndex, TimeIndex
from logbus_broker.protocol.records import build_batch

from tests.support.batches import records_at
from tests.support.logs import CountingDisk, append, files_with, flush, open_log


def test_entries_have_the_bytes_that_apache_kafka_writes() -> None:
    index = OffsetIndex()
    index.append(9, 4_100)
    index.append(2**31 - 1, 2**31)
    assert bytes(index.data) == bytes.fromhex("00000009 00001004 7fffffff 80000000")
    assert OffsetIndex(bytes(index.data)).entry(1) == (2**31 - 1, 2**31)


@pytest.mark.parametrize("kind", ["even", "dense", "uneven"])
def test_floor_finds_what_looking_at_every_entry_finds(kind: str) -> None:
    """It guesses an entry's position from its offset; offsets may be distributed in any way."""
    chance = random.Random(kind)
    for _ in range(60):
        index, offsets = OffsetIndex(), [chance.choice((0, 5, 100_000))]
        while len(offsets) < 40:
            step = {"even": 75, "dense": chance.randrange(2), "uneven": chance.randrange(1, 1 << chance.randrange(1, 26))}[kind]
            offsets.append(offsets[-1] + step)
        for number, offset in enumerate(offsets):
            index.append(offset, number * 10)
        for offset in {
            -1,
            0,
            offsets[-1] + 1,
            *offsets,
            *(offset - 1 for offset in offsets),
            *(offset + 1 for offset in offsets),
        }:
            count = bisect_right(offsets, offset)
            assert index.floor(offset) == (index.entry(count - 1) if count else None)


def test_only_a_larger_timestamp_makes_an_entry() -> None:
    index = TimeIndex()
    for entry in [(-1, 0), (100, 9), (100, 19), (50, 29), (101, 39)]:
        index.maybe_append(*entry)
    assert [index.entry(number) for number in range(len(index))] == [(100, 9), (101, 39)]
    assert index.last() == (101, 39)


def test_time_entries_have_the_bytes_that_apache_kafka_writes() -> None:
    index = TimeIndex()
    index.maybe_append(1_700_000_000_000, 258)
    assert bytes(index.data) == bytes.fromhex("0000018bcfe56800 00000102")
    assert TimeIndex(bytes(index.data)).last() == (1_700_000_000_000, 258)
    assert TimeIndex().last() is None


COUNTS = [0, 1, 2, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 3 * BLOCK_ENTRIES + 7]
RECORDS = 900


def filled(kind: type[OffsetIndex] | type[TimeIndex], count: int) -> OffsetIndex | TimeIndex:
    """Keys with gaps of 1 to 9."""
    chance, index, key = random.Random(count), kind(), 5
    for number in range(count):
        if isinstance(index, OffsetIndex):
            index.append(key, number * 4096)
        else:
            index.maybe_append(key, number)
        key += chance.randrange(1, 10)
    return index


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("count", COUNTS)
def test_each_key_is_found_as_in_the_loaded_index(kind: type[OffsetIndex] | type[TimeIndex], count: int, tmp_path: Path) -> None:
    loaded = filled(kind, count)
    path = tmp_path / "0.index"
    path.write_bytes(loaded.data)
    keys = list(range(-2, (loaded.entry(count - 1)[0] if count else 0) + 12))
    kept = StoredIndex(FileSystem(), path, loaded)
    assert [kept.floor(key) for key in keys] == [loaded.floor(key) for key in keys]
    random.Random(1).shuffle(keys)
    assert [kept.floor(key) for key in keys] == [loaded.floor(key) for key in keys]
    assert [StoredIndex(FileSystem(), path, loaded).floor(key) for key in keys[:50]] == [loaded.floor(key) for key in keys[:50]]


def test_an_index_of_a_megabyte_is_read_in_part(tmp_path: Path) -> None:
    loaded, disk = filled(OffsetIndex, 1 << 17), CountingDisk()
    path = tmp_path / "0.index"
    path.write_bytes(loaded.data)
    stored = StoredIndex(disk, path, loaded)
    middle = loaded.entry(1 << 16)[0]
    assert stored.floor(middle) == loaded.floor(middle)
    reads = list(disk.reads)
    assert sum(reads) < len(loaded.data) / 200
    assert stored.floor(middle + 1) == loaded.floor(middle + 1)
    assert disk.reads == reads, "the next place is in the block that was read"


def log_on(disk: FileSystem, path: Path) -> PartitionLog:
    """A log with sealed segments that have not been read yet, as after a start."""
    settings = {"segment_bytes": 20_000, "index_interval_bytes": 200}
    log = open_log(path, **settings)
    for number in range(RECORDS // 3):
        append(log, build_batch(records_at([number * 10, number * 10 + 3, number * 10 + 1], value=b"v" * 20)))
    flush(log)
    log.close()
    return open_log(path, clean=True, recovery_point=RECORDS, filesystem=disk, **settings)


def answers(log: PartitionLog) -> list[object]:
    """Answers, each from cold segments."""
    results: list[object] = []
    for offset in range(0, RECORDS, 7):
        forget(log)
        piece = log.locate(offset, 1, upto_offset=RECORDS)
        results += [(piece.position, piece.length), log.search_by_time(offset * 3, upto_offset=RECORDS).run()]
    return results


def forget(log: PartitionLog) -> list[Segment]:
    sealed = [segment for segment in log.segments if segment.end_offset is not None]
    for segment in sealed:
        segment.forget()
    return sealed


def test_indexes_are_loaded_whole_once_after_a_start_and_then_read_in_part(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = log_on(disk, tmp_path)
    expected = answers(log)
    loads = disk.whole.count(".index")
    assert loads == disk.whole.count(".timeindex") == len(log.segments), "to prove them by their checksums"
    assert answers(log) == expected
    assert disk.whole.count(".index") == loads


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("keep", [None, 0, 12, 30])
def test_an_index_that_is_cut_or_removed_while_the_broker_runs_costs_time_and_no_answer(
    suffix: str, keep: int | None, tmp_path: Path
) -> None:
    log = log_on(FileSystem(), tmp_path)
    expected = answers(log)
    for path in files_with(tmp_path, suffix):
        if keep is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:keep])
    assert answers(log) == expected


def test_the_files_of_a_replacement_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Compaction gives the replacement the same names: a reader of the old segment must not use its indexes."""
    log = log_on(FileSystem(), tmp_path)
    answers(log)
    old, other = forget(log)[:2]
    expected = [old.batch_at(offset) for offset in range(0, other.base_offset)]
    old.forget()
    _ = old.file  # the old segment's log, which stays readable
    old.replacement = other
    for suffix in (".index", ".timeindex", ".indexnote"):
        old.path(suffix).write_bytes(other.path(suffix).read_bytes())
    assert [old.batch_at(offset) for offset in range(0, other.base_offset)] == expected
