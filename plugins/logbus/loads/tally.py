"""Counting: what a set of rows holds for each partition of a window, and whether that is exactly what it should hold.

The same statement counts a sealed table before the commit and the public table after it; the same rule applies to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from logbus.fingerprint import MODULUS
from logbus.formatting import many
from logbus.loads import checksum
from logbus.loads.target import ROWS_OF_WINDOW, window_parameters
from logbus.model import FrozenWindow, OffsetRange, PartitionTally
from logbus.windows.table_names import TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Where rows are stored; dead letters and target rows name their columns differently.

    `condition` selects the window's rows. Of those for which `counted` is false, only the number is reported.
    """

    table: str
    partition: str
    offset: str
    timestamp: str
    fingerprint: str
    condition: str = "true"
    counted: str = "true"


def target_rows(table: str, condition: str = "true", *, counted: str = "true") -> RowSource:
    return RowSource(
        table=table,
        partition="_partition",
        offset="_offset",
        timestamp="_timestamp",
        fingerprint="_fingerprint",
        condition=condition,
        counted=counted,
    )


def dead_letters(table: str, condition: str = "true", *, counted: str = "true") -> RowSource:
    return RowSource(
        table=table,
        partition='"partition"',
        offset='"offset"',
        timestamp='"timestamp"',
        fingerprint="fingerprint",
        condition=condition,
        counted=counted,
    )


# For sinks that store rows outside the database.
NO_ROWS = target_rows(
    "(select 0 _partition, 0::bigint _offset, null::timestamptz _timestamp, 0::bigint _fingerprint) nothing", "false"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was counted for a window, by partition, and how many `others` there are that do not count. For sealed rows also their
    checksum: of the `table` or of the `files`."""

    tallies: Mapping[int, PartitionTally] = field(default_factory=dict)
    spans: Mapping[int, TimeSpan] = field(default_factory=dict)
    others: int = 0
    table: checksum.Checksum | None = None
    files: Mapping[str, str] | None = None


def count(connection: Connection, rows: RowSource, dead: RowSource, parameters: Mapping[str, Any] | None = None) -> Counted:
    """Tallies and time spans by partition, for rows and dead letters together: their offsets must not overlap either."""
    all_rows = f"({select_from(rows, False)} union all {select_from(dead, True)}) found"
    query = text(
        f"select part, counts, count(*) filter (where not is_dead) loaded, count(*) filter (where is_dead) dead_lettered, "
        f"min(at) min_offset, max(at) max_offset, sum(hash) fingerprint, sum(hashint8extended(at, {OFFSET_SEED})) offsets_hash, "
        f"min(stamp) first_stamp, max(stamp) last_stamp from {all_rows} group by part, counts order by part"
    )
    parts = connection.execute(query, parameters or {}).mappings().all()
    counted = [row for row in parts if row["counts"]]
    return Counted(
        tallies={row["part"]: to_tally(row, count_distinct(connection, all_rows, row, parameters or {})) for row in counted},
        spans={row["part"]: TimeSpan(first=row["first_stamp"], last=row["last_stamp"]) for row in counted},
        others=sum(row["loaded"] + row["dead_lettered"] for row in parts if not row["counts"]),
    )


def count_window(connection: Connection, window: FrozenWindow, target: TableName) -> Mapping[int, PartitionTally]:
    """Counts the public rows in the pipeline's table and the dead letters of a window, by partition."""
    rows = target_rows(target.sql, ROWS_OF_WINDOW)
    dead = dead_letters(checksum.DEAD_LETTERS.sql, "window_id = :window_id")
    parameters = {**window_parameters(window), "window_id": window.id}
    return count(connection, rows, dead, parameters).tallies


# Any number does. It makes the hash for comparing offsets differ from the one that PostgreSQL uses for partitioning.
OFFSET_SEED = 0x6F6666736574


def count_distinct(connection: Connection, all_rows: str, row: Mapping[Any, Any], parameters: Mapping[str, Any]) -> int:
    """How many different offsets there are.

    To count them the server sorts them all, which takes three times as long as everything else. If there are as many rows as
    offsets between the first and the last, and the sums of their hashes are equal, the rows are those offsets once each: a
    collision of 64 bits is not to be expected.
    """
    size: int = row["loaded"] + row["dead_lettered"]
    if row["max_offset"] - row["min_offset"] + 1 == size:
        series = "select generate_series(cast(:first as bigint), cast(:last as bigint)) at"
        every = f"select sum(hashint8extended(at, {OFFSET_SEED})) from ({series}) every"
        span = {"first": row["min_offset"], "last": row["max_offset"]}
        if connection.execute(text(every), span).scalar_one() == row["offsets_hash"]:
            return size
    query = text(f"select count(distinct at) from {all_rows} where part = :part and counts")
    different: int = connection.execute(query, {**parameters, "part": row["part"]}).scalar_one()
    return different


def select_from(source: RowSource, is_dead: bool) -> str:
    return (
        f"select {source.partition} part, {source.offset} at, {source.timestamp} stamp, {source.fingerprint} hash, "
        f"{source.counted} counts, {str(is_dead).lower()} is_dead from {source.table} where {source.condition}"
    )


def to_tally(row: Mapping[Any, Any], distinct_offsets: int) -> PartitionTally:
    return PartitionTally(
        partition=row["part"],
        loaded=row["loaded"],
        dead_lettered=row["dead_lettered"],
        distinct_offsets=distinct_offsets,
        min_offset=row["min_offset"],
        max_offset=row["max_offset"],
        fingerprint=int(row["fingerprint"]) % MODULUS,
    )


def problems(
    window: FrozenWindow, tallies: Mapping[int, PartitionTally], filtered: Mapping[int, int], *, gaps_allowed: bool
) -> list[str]:
    """Everything in which the rows that were found differ from the window's ranges. Empty means exact."""
    ranges = {part.partition: part for part in window.ranges}
    strangers = [f"partition {part} has rows but is not part of the window" for part in tallies if part not in ranges]
    return strangers + [
        problem
        for part in window.ranges
        for problem in range_problems(
            part,
            tallies.get(part.partition, PartitionTally(partition=part.partition)),
            filtered.get(part.partition, 0),
            gaps_allowed,
        )
    ]


def range_problems(part: OffsetRange, tally: PartitionTally, filtered: int, gaps_allowed: bool) -> Iterable[str]:
    rows = tally.loaded + tally.dead_lettered
    accounted, name = rows + filtered, f"{part}"
    if accounted > part.count or (accounted < part.count and not gaps_allowed):
        yield f"{name} holds {many(part.count, 'record')}, accounted for: {accounted:,} ({accounted - part.count:+d})"
    if tally.distinct_offsets != rows:
        yield f"{name}: {many(rows, 'row')}, {many(tally.distinct_offsets, 'offset')} ({rows - tally.distinct_offsets} twice)"
    if tally.min_offset is not None and tally.min_offset < part.readable_from:
        yield f"{name}: a row of offset {tally.min_offset}, before the range"
    if tally.max_offset is not None and tally.max_offset >= part.end_offset:
        yield f"{name}: a row of offset {tally.max_offset}, after the range"
