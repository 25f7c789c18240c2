"""Counting batches of rows: the same results as SQL, whatever the batches' order and however they mix partitions."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from logbus.fingerprint import as_signed
from logbus.loads.sinks.iceberg_table import count_batches, with_dead_letters
from logbus.loads.tally import Counted, TimeSpan
from logbus.model import PartitionTally

Row = tuple[int, int, int]  # partition, offset, hash


def batch(*rows: Row) -> pa.RecordBatch:
    stamps = [datetime(2015, 5, 17, 10, offset % 60, tzinfo=UTC) for _, offset, _ in rows]
    return pa.RecordBatch.from_pydict(
        {
            "_partition": pa.array([row[0] for row in rows], pa.int32()),
            "_offset": pa.array([row[1] for row in rows], pa.int64()),
            "_timestamp": pa.array(stamps, pa.timestamp("us", tz="UTC")),
            "_fingerprint": pa.array([as_signed(row[2]) for row in rows], pa.int64()),
        }
    )


def count(*batches: pa.RecordBatch) -> dict[int, PartitionTally]:
    return dict(count_batches(lambda: batches).tallies)


def test_no_batches_are_no_partitions() -> None:
    assert count() == {}
    assert count(batch()) == {}


def test_partitions_are_counted_apart_though_batches_mix_them() -> None:
    found = count(batch((0, 5, 1), (1, 9, 2), (0, 6, 3)), batch((1, 10, 4)))
    assert found[0] == PartitionTally(partition=0, loaded=2, distinct_offsets=2, min_offset=5, max_offset=6, fingerprint=4)
    assert found[1] == PartitionTally(partition=1, loaded=2, distinct_offsets=2, min_offset=9, max_offset=10, fingerprint=6)


@pytest.mark.parametrize(
    "batches",
    [
        [batch((0, 1, 0), (0, 1, 0))],
        [batch((0, 1, 0)), batch((0, 1, 0))],
        [batch((0, 1, 0), (0, 2, 0)), batch((0, 2, 0))],
        [batch((0, 2, 0), (0, 1, 0)), batch((0, 1, 0))],
    ],
)
def test_an_offset_that_is_there_twice_is_counted_once_as_distinct(batches: list[pa.RecordBatch]) -> None:
    rows = sum(part.num_rows for part in batches)
    assert (count(*batches)[0].loaded, count(*batches)[0].distinct_offsets) == (rows, rows - 1)


@pytest.mark.parametrize(
    "batches",
    [
        [batch((0, 3, 0), (0, 4, 0)), batch((0, 1, 0))],
        [batch((0, 2, 0), (0, 1, 0))],
        [batch((0, 1, 0), (0, 5, 0)), batch((0, 3, 0))],
    ],
)
def test_offsets_out_of_order_are_distinct_all_the_same(batches: list[pa.RecordBatch]) -> None:
    rows = sum(part.num_rows for part in batches)
    assert count(*batches)[0].distinct_offsets == rows


def test_rows_and_dead_letters_are_one_count() -> None:
    early, late = datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 11, tzinfo=UTC)
    rows = count_batches(lambda: [batch((0, 1, 5), (0, 2, 6))])
    tally = PartitionTally(partition=0, dead_lettered=1, distinct_offsets=1, min_offset=0, max_offset=0, fingerprint=7)
    dead = Counted(tallies={0: tally, 3: PartitionTally(partition=3)}, spans={0: TimeSpan(first=early, last=late)})
    found = with_dead_letters(rows, dead)
    assert found.tallies[0] == PartitionTally(
        partition=0, loaded=2, dead_lettered=1, distinct_offsets=3, min_offset=0, max_offset=2, fingerprint=18
    )
    assert found.spans[0] == TimeSpan(first=early, last=late)
    assert 3 in found.tallies
