"""A checksum over rows of a table, computed by the database: equal rows give an equal checksum, wherever and in whatever order.

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
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, ProgrammingError

from logbus.fingerprint import MODULUS, as_text
from logbus.loads.target import COLUMN_TYPES, ROWS_OF_WINDOW, SPELLINGS, SYSTEM_COLUMNS, table_columns, window_parameters
from logbus.model import FrozenWindow
from logbus.windows import schema, sql_errors
from logbus.windows.table_names import SCHEMA, TableName, quoted

# Fixed by the condition that selects a window's rows, so there is nothing to compare.
CHOSEN_BY = ("_topic", "_window_start")

HASHED_TYPES = frozenset(SPELLINGS.get(kind, kind) for kind in COLUMN_TYPES)

# The record's partition: sums are kept per partition, so that a difference can be located.
PARTITION = "_partition"

# One value of every type that a column may have, and the encoding in which texts are hashed.
PROBE = (
    "hash_record_extended(row(cast('logbus' as text) collate \"C\", 1, cast(-1 as bigint), cast(0.1 as double precision), true, "
    "cast('2015-05-17 10:05:03.25+00' as timestamptz), cast('{\"a\": [1, null, \"x\"]}' as jsonb), decode('00ff', 'hex'), "
    "cast(current_setting('server_encoding') as text) collate \"C\"), 0)"
)

DEAD_LETTERS = TableName(name=schema.dead_letter.name, schema=SCHEMA)

# The columns that a redrive does not change in a dead letter that stays.
DEAD_LETTER_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "fingerprint")


def covered(present: Mapping[str, str], filled: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that the checksum covers, with their types: those `filled` by the load, or all that a load could fill."""
    names = present if filled is None else [name for name in (*SYSTEM_COLUMNS, *filled) if name in present]
    return {name: present[name] for name in names if name not in CHOSEN_BY and present[name] in HASHED_TYPES}


def take(
    connection: Connection,
    table: TableName,
    columns: Mapping[str, str],
    condition: str = "true",
    parameters: Mapping[str, Any] | None = None,
    partition: str = PARTITION,
) -> Checksum:
    """The checksum of the rows for which the condition holds. The values are cast, in case the table has other types, and hashed
    in the order of the columns' names, whatever their order in the table."""
    # Texts are compared byte by byte, whatever the column's collation treats as equal.
    collations = {"text": ' collate "C"'}
    casts = [f"cast({quoted(name)} as {kind}){collations.get(kind, '')}" for name, kind in sorted(columns.items())]
    part = quoted(partition)
    # The server's own hash of a row is a sum of multiples of its columns' hashes: summed over rows, it does not change if two
    # rows exchange a value. So it is hashed once more, as text: the hash of an integer would keep only 32 bits.
    row_hash = f'hashtextextended(cast(hash_record_extended(row({", ".join(casts)}), 0) as text) collate "C", 0)'
    query = text(f"select {part} part, sum({row_hash}) total from {table.sql} where {condition} group by 1 order by 1")
    rows = connection.execute(query, parameters or {}).all()
    probe = connection.execute(text(f"select {PROBE}")).scalar_one()
    return Checksum(
        sums={str(row.part): as_text(int(row.total) % MODULUS) for row in rows}, probe=as_text(probe), columns=dict(columns)
    )


def take_dead_letters(connection: Connection, window_id: int) -> Checksum:
    present = table_columns(connection, DEAD_LETTERS)
    columns = {name: present[name] for name in DEAD_LETTER_COLUMNS}
    return take(connection, DEAD_LETTERS, columns, "window_id = :window_id", {"window_id": window_id}, "partition")


def compare(
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
            now = take(connection, table, then.columns, condition, parameters, partition)
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

    def to_json(self) -> dict[str, Any]:
        return {"sums": dict(self.sums), "probe": self.probe, "columns": dict(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checksums of one window. `staged`: by partition the fingerprint of rows and dead letters; `files`: name to hash."""

    staged: Mapping[int, str] = field(default_factory=dict)
    table: Checksum | None = None
    files: Mapping[str, str] | None = None
    dead_letters: Checksum | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "staged": {str(partition): fingerprint for partition, fingerprint in self.staged.items()},
            "table": self.table and self.table.to_json(),
            "files": self.files if self.files is None else dict(self.files),
            "dead_letters": self.dead_letters and self.dead_letters.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Published:
        """The inverse of `to_json`."""
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


def join(*reports: ValuesReport) -> ValuesReport:
    return ValuesReport(
        problems=tuple(problem for report in reports for problem in report.problems),
        notes=tuple(note for report in reports for note in report.notes),
    )


def of_window(window: FrozenWindow) -> Published | None:
    """The checksums that its load stored; None if no attempt has loaded it."""
    return None if window.values_hash is None else Published.from_json(window.values_hash)


def compare_table(connection: Connection, window: FrozenWindow, target: TableName) -> ValuesReport:
    """Compares the rows of a window in the pipeline's table."""
    then = of_window(window)
    if then is None:
        return ValuesReport()
    if then.table is None:
        return WITHOUT_CHECKSUM
    return compare(connection, "rows", then.table, target, ROWS_OF_WINDOW, window_parameters(window))


def compare_dead_letters(connection: Connection, window: FrozenWindow) -> ValuesReport:
    """Compares the dead letters, if there were any. If there are more or fewer of them, the audit's counts show it."""
    then = of_window(window)
    if then is None or then.dead_letters is None:
        return ValuesReport()
    parameters: Mapping[str, Any] = {"window_id": window.id}
    return compare(connection, "dead letters", then.dead_letters, DEAD_LETTERS, "window_id = :window_id", parameters, "partition")
