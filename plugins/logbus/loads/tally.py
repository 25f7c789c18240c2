"""What rows hold, by partition of the log: counts, and whether they are exactly what they should be; checksums of their values.

The same statement counts a sealed table before the commit and the public table after it; the same rule applies to both.

A CHECKSUM over rows of a table is computed by the database: equal rows give an equal checksum, wherever and in whatever order.
For each partition of the log it is the sum of PostgreSQL's own hashes of the rows, modulo 2^64. It covers the columns that a load
fills, by name and with the type they had then; a column added later does not belong to the load. So the checksum survives new
columns, another column order, a day's leaves merged into one, a dump and restore, and a type that holds the same values (integer
to bigint: they are cast back). Equality is PostgreSQL's: -0 and 0, or 1.0 and 1.00 inside jsonb, are the same value.

Hash functions stay the same between major versions because hash-partitioned tables depend on them, but that is not guaranteed,
and they differ on a machine of the other byte order or under another server encoding. A probe detects this: if the functions give
another result for values that never change, the checksum cannot be compared, and that is reported; it is never treated as a
fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, ProgrammingError

from logbus.fingerprint import MODULUS, as_text
from logbus.formatting import many
from logbus.loads.target import COLUMN_TYPES, ROWS_OF_WINDOW, SPELLINGS, table_columns, window_parameters
from logbus.model import FrozenWindow, PartitionTally
from logbus.windows import schema, sql_errors
from logbus.windows.table_names import SCHEMA, SYSTEM_COLUMNS, WINDOW_COLUMNS, TableName, quoted

DEAD_LETTERS = TableName(name=schema.dead_letter.name, schema=SCHEMA)


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
    table: Checksum | None = None
    files: Mapping[str, str] | None = None


def count(
    connection: Connection,
    rows: str | None,
    dead: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    counted: str = "true",
    covered: Mapping[str, str] | None = None,
) -> Counted:
    """Tallies and time spans by partition, for rows and dead letters together: their offsets must not overlap either. Both are a
    table, and `where` if not all of it is meant; None: the rows are outside the database. Of what is not `counted`, only the
    number is reported. `covered`: columns of the rows whose checksum is taken in the same scan."""
    values = "cast(null as bigint)" if covered is None else row_hash(covered)
    in_rows = (
        "select _partition part, _offset at, _timestamp stamp, _fingerprint hash, "
        f"{counted} counts, false is_dead, {values} row_hash from {rows}"
    )
    in_dead = (
        'select "partition" part, "offset" at, "timestamp" stamp, fingerprint hash, '
        f"{counted} counts, true is_dead, cast(null as bigint) row_hash from {dead}"
    )
    all_rows = f"({in_dead}) found" if rows is None else f"({in_rows} union all {in_dead}) found"
    query = text(
        f"select part, counts, count(*) filter (where not is_dead) loaded, count(*) filter (where is_dead) dead_lettered, "
        f"min(at) min_offset, max(at) max_offset, sum(hash) fingerprint, sum(hashint8extended(at, {OFFSET_SEED})) offsets_hash, "
        "min(stamp) first_stamp, max(stamp) last_stamp, sum(row_hash) row_hashes "
        f"from {all_rows} group by part, counts order by part"
    )
    parts = connection.execute(query, parameters or {}).mappings().all()
    by_part = {row["part"]: row for row in parts if row["counts"]}
    sums = {part: row["row_hashes"] for part, row in by_part.items() if row["loaded"]}
    return Counted(
        tallies={
            part: PartitionTally(
                partition=part,
                loaded=row["loaded"],
                dead_lettered=row["dead_lettered"],
                distinct_offsets=count_distinct(connection, all_rows, row, parameters or {}),
                min_offset=row["min_offset"],
                max_offset=row["max_offset"],
                fingerprint=int(row["fingerprint"]) % MODULUS,
            )
            for part, row in by_part.items()
        },
        spans={part: TimeSpan(first=row["first_stamp"], last=row["last_stamp"]) for part, row in by_part.items()},
        others=sum(row["loaded"] + row["dead_lettered"] for row in parts if not row["counts"]),
        table=None if covered is None else _checksum(connection, sums, covered),
    )


def count_window(connection: Connection, window: FrozenWindow, target: TableName) -> Mapping[int, PartitionTally]:
    """Counts the public rows in the pipeline's table and the dead letters of a window, by partition."""
    rows, dead = f"{target.sql} where {ROWS_OF_WINDOW}", f"{DEAD_LETTERS.sql} where window_id = :window_id"
    return count(connection, rows, dead, {**window_parameters(window), "window_id": window.id}).tallies


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


def problems(
    window: FrozenWindow, tallies: Mapping[int, PartitionTally], filtered: Mapping[int, int], *, gaps_allowed: bool
) -> list[str]:
    """Everything in which the rows that were found differ from the window's ranges. Empty means exact."""
    partitions = {part.partition for part in window.ranges}
    wrong = [f"partition {part} has rows but is not part of the window" for part in tallies if part not in partitions]
    for part in window.ranges:
        tally = tallies.get(part.partition, PartitionTally(partition=part.partition))
        rows = tally.loaded + tally.dead_lettered
        accounted = rows + filtered.get(part.partition, 0)
        if accounted > part.count or (accounted < part.count and not gaps_allowed):
            wrong.append(f"{part} holds {many(part.count, 'record')}, accounted for: {accounted:,} ({accounted - part.count:+d})")
        if tally.distinct_offsets != rows:
            offsets = many(tally.distinct_offsets, "offset")
            wrong.append(f"{part}: {many(rows, 'row')}, {offsets} ({rows - tally.distinct_offsets} twice)")
        if tally.min_offset is not None and tally.min_offset < part.readable_from:
            wrong.append(f"{part}: a row of offset {tally.min_offset}, before the range")
        if tally.max_offset is not None and tally.max_offset >= part.end_offset:
            wrong.append(f"{part}: a row of offset {tally.max_offset}, after the range")
    return wrong


# Checksums: of what a load makes public, taken again by each audit.


HASHED_TYPES = frozenset(SPELLINGS.get(kind, kind) for kind in COLUMN_TYPES)

# The record's partition: sums are kept per partition, so that a difference can be located.
PARTITION = "_partition"

# The server's own hash of a row is a sum of multiples of its columns' hashes: summed over rows, it does not change if two rows
# exchange a value. So it is hashed once more, as the seed of another hash: of an integer 32 bits are hashed, a seed keeps its 64.
MIXED = "hashint8extended(0, {})"

# One value of every type that a column may have, and the encoding in which texts are hashed.
PROBE = MIXED.format(
    "hash_record_extended(row(cast('logbus' as text) collate \"C\", 1, cast(-1 as bigint), cast(0.1 as double precision), true, "
    "cast('2015-05-17 10:05:03.25+00' as timestamptz), cast('{\"a\": [1, null, \"x\"]}' as jsonb), decode('00ff', 'hex'), "
    "cast(current_setting('server_encoding') as text) collate \"C\"), 0)"
)

# The columns that a redrive does not change in a dead letter that stays.
DEAD_LETTER_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "fingerprint")


def covered_columns(present: Mapping[str, str], filled: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that the checksum covers, with their types: those `filled` by the load, or all that a load could fill."""
    names = present if filled is None else [name for name in (*SYSTEM_COLUMNS, *filled) if name in present]
    return {
        name: kind
        for name, kind in ((name, present[name]) for name in names)
        if name not in WINDOW_COLUMNS  # fixed by the condition that selects the window's rows: there is nothing to compare
        and (kind in HASHED_TYPES or kind.startswith("numeric("))  # a schema's own precision and scale
    }


def row_hash(columns: Mapping[str, str]) -> str:
    """An expression: 64 bits of a row's values. They are cast, in case the table has other types, and hashed in the order of the
    columns' names, whatever their order in the table."""
    # Texts are compared byte by byte, whatever the column's collation treats as equal.
    collations = {"text": ' collate "C"'}
    casts = [f"cast({quoted(name)} as {kind}){collations.get(kind, '')}" for name, kind in sorted(columns.items())]
    return MIXED.format(f"hash_record_extended(row({', '.join(casts)}), 0)")


def _checksum(connection: Connection, sums: Mapping[int, Any], columns: Mapping[str, str]) -> Checksum:
    """From the sums of row hashes, by partition."""
    probe = connection.execute(text(f"select {PROBE}")).scalar_one()
    totals = {str(part): as_text(int(total) % MODULUS) for part, total in sorted(sums.items())}
    return Checksum(sums=totals, probe=as_text(probe), columns=dict(columns))


def checksum_of(
    connection: Connection,
    table: TableName,
    columns: Mapping[str, str],
    condition: str = "true",
    parameters: Mapping[str, Any] | None = None,
    partition: str = PARTITION,
) -> Checksum:
    """The checksum of the rows for which the condition holds."""
    query = text(f"select sum({row_hash(columns)}) total, {quoted(partition)} part from {table.sql} where {condition} group by 2")
    sums = {row.part: row.total for row in connection.execute(query, parameters or {})}
    return _checksum(connection, sums, columns)


def checksum_of_dead_letters(connection: Connection, window_id: int) -> Checksum:
    present = table_columns(connection, DEAD_LETTERS)
    columns = {name: present[name] for name in DEAD_LETTER_COLUMNS}
    return checksum_of(connection, DEAD_LETTERS, columns, "window_id = :window_id", {"window_id": window_id}, "partition")


def compare_checksum(
    connection: Connection,
    what: str,
    then: Checksum,
    table: TableName,
    condition: str,
    parameters: Mapping[str, Any],
    partition: str = PARTITION,
) -> ValuesReport:
    """Takes the checksum again and compares. `what` names the rows in messages: "rows", "dead letters"."""
    present = table_columns(connection, table)
    gone = [name for name in then.columns if name not in present]
    if gone:
        return ValuesReport(problems=(f"{table} has no column {', '.join(gone)} any more, which was loaded",))
    changed = "; ".join(
        f"{name} was {kind} and is {present[name]}" for name, kind in then.columns.items() if present[name] != kind
    )
    try:
        with connection.begin_nested():
            now = checksum_of(connection, table, then.columns, condition, parameters, partition)
    except (DataError, ProgrammingError) as error:  # a type that can no longer hold the values
        reason = sql_errors.reason_of(error)
        return ValuesReport(problems=(f"the values of {table} cannot be compared, {changed or 'its columns changed'}: {reason}",))
    if now.probe != then.probe:
        return ValuesReport(
            notes=(f"this server hashes values otherwise than the one that took the checksum of the {what}: {AGAIN}",)
        )
    differ = [part for part in sorted({*now.sums, *then.sums}, key=int) if now.sums.get(part) != then.sums.get(part)]
    if not differ:
        return ValuesReport()
    retyped = f" ({changed})" if changed else ""
    return ValuesReport(
        problems=(
            f"partition {', '.join(differ)}: {table} does not hold the values that were loaded, {what} were changed{retyped}",
        )
    )


AGAIN = "they are not compared until the window is loaded again"


# What a load stores for later audits to compare values with (`window.values_hash`).
#
# The fingerprint identifies the records of a window; as a column of the rows it proves nothing about the other columns. So
# every commit stores checksums of what it made public: of the rows if the sink is a table, of each file if it writes files, and
# of the dead letters; and with them, by partition, the fingerprints of what was staged, which with a filter differ from those
# of what was read.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Sums over rows of a table in the database, by the records' partition. `columns`: the covered ones, name to type, as they
    were when the checksum was taken.

    `probe` is the result of the same functions for constant values: a server whose functions return something else (a new major
    version, another machine) cannot reproduce this checksum.
    """

    sums: Mapping[str, str]
    probe: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checksums of one window. `staged`: by partition the fingerprint of rows and dead letters; `files`: name to hash."""

    staged: Mapping[int, str] = field(default_factory=dict)
    table: Checksum | None = None
    files: Mapping[str, str] | None = None
    dead_letters: Checksum | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Published:
        """From what `asdict` makes of it, read back from JSON."""
        table, dead = (content[name] and Checksum(**content[name]) for name in ("table", "dead_letters"))
        staged = {int(partition): fingerprint for partition, fingerprint in content["staged"].items()}
        return cls(staged=staged, table=table, files=content["files"], dead_letters=dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesReport:
    """What a sink found when it took the checksums again."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# A redrive could not compare the former checksum, and stored none that would vouch for what nobody compared.
WITHOUT_CHECKSUM = ValuesReport(
    notes=("no checksum of the values is stored: only counts and fingerprints are compared; load the window again",)
)


def join_reports(*reports: ValuesReport) -> ValuesReport:
    return ValuesReport(
        problems=tuple(problem for report in reports for problem in report.problems),
        notes=tuple(note for report in reports for note in report.notes),
    )


def published_checksums(window: FrozenWindow) -> Published | None:
    """The checksums that its load stored; None if no attempt has loaded it."""
    return None if window.values_hash is None else Published.from_json(window.values_hash)


def compare_table(connection: Connection, window: FrozenWindow, target: TableName) -> ValuesReport:
    """Compares the rows of a window in the pipeline's table."""
    then = published_checksums(window)
    if then is None:
        return ValuesReport()
    if then.table is None:
        return WITHOUT_CHECKSUM
    return compare_checksum(connection, "rows", then.table, target, ROWS_OF_WINDOW, window_parameters(window))


def compare_dead_letters(connection: Connection, window: FrozenWindow) -> ValuesReport:
    """Compares the dead letters, if there were any. If there are more or fewer of them, the audit's counts show it."""
    then = published_checksums(window)
    if then is None or then.dead_letters is None:
        return ValuesReport()
    selected: tuple[str, Mapping[str, Any]] = ("window_id = :window_id", {"window_id": window.id})
    return compare_checksum(connection, "dead letters", then.dead_letters, DEAD_LETTERS, *selected, "partition")
