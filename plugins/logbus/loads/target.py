"""The target table: partitioned by range on `_window_start`, one leaf for each loaded window that holds records; and a table that
others load, read for its audit: which offsets of a topic its rows name, and how often.

Every row records its origin: topic, partition, offset, timestamp, key, window and the record's hash. The columns after
those are the parser's. A table that already exists and is not partitioned like that is the user's own: it is loaded by delete
and insert and never altered.

A table that others load has the topic, the partition and the offset of each row's record in columns of its own: Kafka Connect,
the connectors of Redpanda and of ClickHouse, and Spark all write them, under different names (`PREFIXES`). Nothing in it is
changed. Many have the record's timestamp as well; it says of which hour a row is whose offset says nothing.

The database finds the runs: spans of offsets that all occur equally often. So an hour of a hundred million rows without a fault
is one line, and no list of offsets is ever held. All questions are answered from one snapshot. The statements are the same in
PostgreSQL and in DuckDB, which gets the columns of an Iceberg table batch by batch from pyiceberg, whatever its files, deletes
and types are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.errors import CheckViolation
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from logbus import errors, model, pipeline_settings
from logbus.windows.sql_errors import reason_of, refusal_of
from logbus.windows.table_names import TableName, identifier, leaf_name, quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable


# A window's public rows, in whichever leaves; `window_parameters` returns the parameters.
ROWS_OF_WINDOW = "_window_start = :start and _topic = :topic"

# The types a parser may declare, by PostgreSQL's own names. Each has an Arrow type in the Spark job.
COLUMN_TYPES = ("text", "integer", "bigint", "double precision", "boolean", "timestamptz", "date", "jsonb", "bytea")

# Proves to ATTACH that every row belongs to the leaf, so that it need not scan them.
LEAF_CHECK = "_window_start_of_the_leaf"

# Sessions that create the same target wait for each other on this advisory lock and the table's name.
TARGET_LOCK = 0x746172

# How format_type spells the types that have another name here.
SPELLINGS = {"timestamptz": "timestamp with time zone"}


def window_parameters(window: model.FrozenWindow) -> dict[str, Any]:
    return {"start": window.interval.start, "topic": window.topic}


def validate_new_names(table: object, present: Collection[str], missing: Collection[str]) -> None:
    """No table of any sink gets a column whose name differs only in case from that of another one."""
    new = {name.casefold() for name in missing}
    if pair := pipeline_settings.twins(name for name in (*present, *missing) if name.casefold() in new):
        raise errors.UserError(
            f"table {table} would have the columns {pair[0]!r} and {pair[1]!r}, which differ only in upper and lower case, and "
            "many readers treat them as one. Declare the column as the table has it, leave one out, or load into another table"
        )


def lock_target(connection: Connection, target: TableName) -> None:
    """One creator at a time, until the transaction ends."""
    connection.execute(
        text("select pg_advisory_xact_lock(:key, hashtext(:name))"), {"key": TARGET_LOCK, "name": target.identifier}
    )


def add_columns(connection: Connection, target: TableName, missing: Mapping[str, str]) -> None:
    if not missing:
        return
    if not has_leaves(connection, target):
        clauses = ", ".join(f"add column {identifier(name)} {kind}" for name, kind in missing.items())
        raise errors.UserError(
            f"table {target} lacks columns that a load fills; it is yours, so add them: alter table {target} {clauses}"
        )
    additions = ", ".join(f"add column {quoted(name)} {kind}" for name, kind in missing.items())
    connection.execute(text(f"alter table {target.sql} {additions}"))


def follow_columns(connection: Connection, rows: TableName, target: TableName) -> None:
    """Adds the target's columns that an attempt's own table does not have yet."""
    present = table_columns(connection, rows)
    for name, kind in table_columns(connection, target).items():
        if name not in present:
            connection.execute(text(f"alter table {rows.sql} add column {quoted(name)} {kind}"))


def validate_types(target: TableName, present: Mapping[str, str], definitions: Mapping[str, str]) -> None:
    for name, definition in definitions.items():
        kind = definition.removesuffix(" not null")
        if name in present and present[name] != SPELLINGS.get(kind, kind):
            raise errors.UserError(
                f"column {name} of table {target} is {present[name]}, but the pipeline loads {kind}: "
                "declare the column as it is, or load into another table"
            )


def relation_exists(connection: Connection, table: TableName) -> bool:
    query = text("select to_regclass(:name) is not null")
    return bool(connection.execute(query, {"name": table.identifier}).scalar_one())


def has_leaves(connection: Connection, table: TableName) -> bool:
    """Whether the table is partitioned by range of `_window_start` alone, so that an hour can be a leaf of it. A table that is
    partitioned otherwise (by another column, by hash, by a function of the hour) keeps the partitions that its owner gives it."""
    query = text(
        "select exists(select from pg_partitioned_table p "
        "join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0] "
        "where p.partrelid = to_regclass(:name) and p.partstrat = 'r' and p.partnatts = 1 and a.attname = '_window_start')"
    )
    return bool(connection.execute(query, {"name": table.identifier}).scalar_one())


def parent_of(connection: Connection, leaf: TableName) -> TableName | None:
    """The table of which the leaf is a partition; None for a table of its own, and for none at all."""
    query = text(
        "select n.nspname, c.relname from pg_inherits i join pg_class c on c.oid = i.inhparent "
        "join pg_namespace n on n.oid = c.relnamespace where i.inhrelid = to_regclass(:name)"
    )
    parent = connection.execute(query, {"name": leaf.identifier}).one_or_none()
    return None if parent is None else TableName(name=parent.relname, schema=parent.nspname)


@contextmanager
def finding_partitions(connection: Connection, target: TableName, hour: model.Interval) -> Iterator[None]:
    """While rows of the hour are inserted: `LoadFailed`, with what to do, if the target has no partition for them."""
    try:
        with connection.begin_nested():
            yield
    except IntegrityError as error:
        # A check of the user's own has a name.
        if not isinstance(error.orig, CheckViolation) or error.orig.diag.constraint_name is not None:
            raise
        what = f"table {target} has no partition for rows of {hour}"
        raise errors.LoadFailed(f"{what}: {_way_out(connection, target, hour)}. Then try again") from error


def _way_out(connection: Connection, target: TableName, hour: model.Interval) -> str:
    """Why there is no partition for the hour, and what to do."""
    leaf = leaf_name(target, hour.start)
    if not relation_exists(connection, leaf):
        return "its partitions are yours, so give it one for them, or a default one"
    if (parent := parent_of(connection, leaf)) is None:
        bounds = f"for values from ('{model.instant_text(hour.start)}') to ('{model.instant_text(hour.end)}')"
        statement = f"alter table {target.identifier} attach partition {leaf.identifier} {bounds}"
        return f"{leaf} is detached. Attach it again ({statement}), or rename it, and the hour gets a new one"
    return (
        f"{leaf} is a partition of {parent}. If that is this table under another name, give it its name back (drop a {target} "
        f"that was made since, alter table {parent.identifier} rename to {identifier(target.name)}); otherwise rename {leaf}"
    )


def table_columns(connection: Connection, table: TableName, *, with_generated: bool = False) -> dict[str, str]:
    """Names and types of the columns, in the table's order; if not `with_generated`, without those the server fills itself."""
    query = text(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = to_regclass(:name) and attnum > 0 and not attisdropped "
        "and (:with_generated or (attgenerated = '' and attidentity = '')) order by attnum"
    )
    parameters = {"name": table.identifier, "with_generated": with_generated}
    return {row.attname: row.format_type for row in connection.execute(query, parameters)}


# A table that others load, read for its audit: which offsets of a topic its rows name, and how often.


# What precedes `topic`, `partition`, `offset` and `timestamp`: Spark; ClickHouse and our own tables; usual settings of Kafka
# Connect's InsertField; Iceberg's Kafka Connect sink, Redpanda's Iceberg topics and Kafka Connect's BigQuery sink, which write
# a struct.
PREFIXES = ("", "_", "kafka_", "_kafka_", "__kafka_", "_kafka_metadata.", "redpanda.", "kafkaData.")
# PostgreSQL's names for the types, and Iceberg's.
WHOLE_NUMBERS = ("smallint", "integer", "bigint", "int", "long")
INSTANTS = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")  # those without a zone are taken to be in UTC
WRITTEN = ("text", "character", "string", "numeric", "decimal")  # may have whole numbers, too
DATE_TIME = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-9.]+)?Z?$"
ROWS_AT_ONCE = 10_000
NAMES_MAX = 5


class OffsetRun(NamedTuple):
    """Offsets [start, end) of a partition, each of which `times` rows have."""

    partition: int
    start: int
    end: int
    times: int


class HeldOffsets(NamedTuple):
    """How many rows a partition has in the table, and their first and last offset."""

    partition: int | None  # None: the topic has no such partition
    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where a table has them; a dot leads into a struct. Without `topic`, all rows are taken to be of the audited one."""

    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None

    def found_in(self, types: Mapping[str, str], table: str) -> Columns:
        """With the columns that are not named: those of the first of `PREFIXES` for which the table has them."""
        for name in filter(None, (self.topic, self.partition, self.offset, self.timestamp)):
            if name not in types:
                raise errors.WrongRequest(f"table {table} has no column {name!r}; its columns are {', '.join(types)}")
        if self.timestamp and not is_time(types[self.timestamp]):
            raise errors.WrongRequest(
                f"column {self.timestamp!r} of table {table} is of type {types[self.timestamp]}: a record's time is a timestamp, "
                "an ISO date-time in UTC or whole milliseconds (--timestamp-column, timestamp_column)"
            )
        for prefix in PREFIXES:
            partition, offset = self.partition or f"{prefix}partition", self.offset or f"{prefix}offset"
            if partition in types and offset in types:
                topic = self.topic or next((name for name in (f"{prefix}topic", "topic") if name in types), None)
                timestamp = self.timestamp or f"{prefix}timestamp"
                has_times = is_time(types.get(timestamp, ""))
                return Columns(topic=topic, partition=partition, offset=offset, timestamp=timestamp if has_times else None)
        raise errors.WrongRequest(
            f"table {table} has no columns with the partition and the offset of its records under a usual name; its columns are "
            f"{', '.join(types)}: name them by --partition-column and --offset-column (partition_column and offset_column)"
        )


def is_time(column_type: str) -> bool:
    """Whether a column of this type may hold instants: `timestamp(3) with time zone`, `bigint`, `numeric(20,0)`."""
    return column_type.partition("(")[0].split(" ")[0] in (*WHOLE_NUMBERS, *INSTANTS, *WRITTEN)


Ask = Callable[[str], Iterator[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTable:
    """One snapshot of the table. `ask` streams the rows of a statement; `sql` is how statements name the table."""

    name: str
    sql: str
    columns: Columns
    types: Mapping[str, str]
    ask: Ask

    def other_topics(self, topic: str) -> tuple[int, list[str | None]]:
        """How many rows have another topic's name or none, and the commonest of those names."""
        if self.columns.topic is None:
            return 0, []
        statement = (
            f"select cast({column_sql(self.columns.topic)} as text), sum(count(*)) over () from {self.sql} "
            f"where ({self._is_of(topic)}) is not true group by 1 order by count(*) desc limit {NAMES_MAX}"
        )
        rows = list(self.ask(statement))
        return (int(rows[0][1]) if rows else 0), [row[0] for row in rows]

    def rows_without_place(self, topic: str) -> int:
        """How many rows of the topic name no partition and offset: null, negative, or no whole number."""
        statement = f"{self._placed(topic)} select count(*) from placed where (p >= 0 and o >= 0) is not true"
        return int(next(self.ask(statement))[0])

    def held(self, topic: str, partitions: Sequence[int]) -> list[HeldOffsets]:
        """By partition of the topic, and together for all others."""
        partition = f"case when p in ({', '.join(map(str, partitions))}) then p end"
        statement = (
            f"{self._placed(topic)} select {partition}, count(*), min(o), max(o) from placed where p >= 0 and o >= 0 group by 1"
        )
        return sorted(
            (HeldOffsets(*row) for row in self.ask(statement)), key=lambda part: (part.partition is None, part.partition)
        )

    def rows_outside(self, topic: str, partition: int, start: int, end: int) -> tuple[int, int]:
        """How many rows of a partition have offsets before `start`, and from `end` on."""
        counts = f"count(*) filter (where o < {start}), count(*) filter (where o >= {end})"
        row = next(self.ask(f"{self._placed(topic)} select {counts} from placed where p = {partition} and o >= 0"))
        return int(row[0]), int(row[1])

    def foreign_by_hour(
        self, topic: str, ends: Mapping[int, int], span: model.Interval, *, is_shared: bool
    ) -> Iterator[tuple[datetime, int]]:
        """How many rows that no record of the topic can have are of each hour of the span, by their own time; `ends` of the log
        by partition, and `is_shared` if other topics' rows are not foreign."""
        is_of = self._is_of(topic)
        has_record = " or ".join(f"(p = {part} and o < {end})" for part, end in ends.items())
        statement = (
            f"with placed as (select {self._place()}, {self._seconds()} as seconds, {is_of} as is_of from {self.sql}"
            f"{f' where {is_of}' if is_shared else ''}) "
            f"select cast(floor(seconds / 3600) as bigint), count(*) from placed "
            f"where seconds >= {span.start.timestamp():.0f} and seconds < {span.end.timestamp():.0f} "
            f"and (is_of and o >= 0 and ({has_record})) is not true group by 1"
        )
        for hours, rows in self.ask(statement):
            yield model.EPOCH + int(hours) * model.HOUR, int(rows)

    def runs(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[OffsetRun]:
        """The runs in these offsets, by partition and offset."""
        spans = [f"(p = {part} and o >= {start} and o < {end})" for part, (start, end) in ranges.items() if start < end]
        if not spans:
            return
        # Neighbours that occur equally often have the same difference between offset and rank among those of their frequency.
        statement = (
            f"{self._placed(topic)}, "
            f"counted as (select p, o, count(*) as times from placed where {' or '.join(spans)} group by p, o), "
            "ranked as (select p, o, times, o - row_number() over (partition by p, times order by o) as run from counted) "
            "select p, min(o) as first, max(o) + 1, times from ranked group by p, times, run order by p, first"
        )
        for row in self.ask(statement):
            yield OffsetRun(*map(int, row))

    def _is_of(self, topic: str) -> str:
        text = topic.replace("'", "''")
        return "true" if self.columns.topic is None else f"{column_sql(self.columns.topic)} = '{text}'"

    def _placed(self, topic: str) -> str:
        """The rows of the topic as partition `p` and offset `o`."""
        return f"with placed as (select {self._place()} from {self.sql} where {self._is_of(topic)})"

    def _place(self) -> str:
        part, offset = (self._whole_number(name) for name in (self.columns.partition, self.columns.offset))
        return f"{part} as p, {offset} as o"

    def _seconds(self) -> str:
        """The record's time since the epoch; of a date-time that is text, its hour's."""
        name = str(self.columns.timestamp)
        column = column_sql(name)
        if self.types[name].startswith(INSTANTS):
            return f"extract(epoch from {column})"
        seconds = f"{self._whole_number(name)} / 1000.0"
        if self.types[name] in WHOLE_NUMBERS:
            return seconds
        written = f"cast({column} as text)"
        month = f"(cast(left({written}, 8) || '01' as date) - date '1970-01-01') * 86400"
        day, hour = (f"cast(substr({written}, {begin}, 2) as int)" for begin in (9, 12))
        return f"case when {written} ~ '{DATE_TIME}' then {month} + ({day} - 1) * 86400 + {hour} * 3600 else {seconds} end"

    def _whole_number(self, name: str | None) -> str:
        """As it is, so that an index of the user's serves; or, from text and decimals, the number that is written there."""
        column = column_sql(str(name))
        if self.types[str(name)] in WHOLE_NUMBERS:
            return column
        written = f"cast({column} as text)"
        return rf"case when {written} ~ '^[0-9]{{1,18}}(\.0+)?$' then cast(split_part({written}, '.', 1) as bigint) end"


def column_sql(name: str) -> str:
    """A column, or a member of a struct."""
    return ".".join(map(identifier, name.split(".")))


@contextmanager
def postgres_table(engine: Engine, name: str, columns: Columns) -> Iterator[ForeignTable]:
    """A table, view or partitioned table in PostgreSQL; `WrongRequest` if it or a column does not exist."""
    schema, _, table_name = name.rpartition(".")
    table = TableName(name=table_name, schema=schema or "public")
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        types = table_columns(connection, table, with_generated=True)
        if not types:
            raise errors.WrongRequest(f"there is no table {table} in database {engine.url.database}: name it as schema.table")

        def ask(statement: str) -> Iterator[tuple[Any, ...]]:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=ROWS_AT_ONCE, no_parameters=True)
            return map(tuple, streamed.exec_driver_sql(statement))

        present = columns.found_in(types, str(table))
        try:
            yield ForeignTable(name=str(table), sql=table.identifier, columns=present, types=types, ask=ask)
        except ProgrammingError as error:
            if refusal_of(error) is not None:
                raise
            raise errors.WrongRequest(f"table {table} cannot be audited by {present}: {reason_of(error)}") from error


@contextmanager
def iceberg_table(catalog_name: str, name: str, columns: Columns) -> Iterator[ForeignTable]:
    """A table of a catalog of pyiceberg's configuration; `WrongRequest` if it or a column does not exist."""
    try:
        import duckdb
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    except ModuleNotFoundError as error:
        raise errors.ExtraMissing.of(error) or error from None
    try:
        table = load_catalog(catalog_name).load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        raise errors.WrongRequest(f"catalog {catalog_name} has no table {name}: name it as namespace.table") from None
    except (ValueError, KeyError) as error:
        raise errors.UserError(
            f"the catalog {catalog_name!r} cannot be opened: {error}. Describe it in .pyiceberg.yaml or by "
            f"PYICEBERG_CATALOG__{catalog_name.upper()}__URI"
        ) from None
    types = {path: str(table.schema().find_type(path)) for path in table.schema().column_names}
    present = columns.found_in(types, name)
    with duckdb.connect() as connection:

        def ask(statement: str) -> Iterator[tuple[Any, ...]]:
            # A reader of batches serves one statement.
            connection.register("audited", needed_columns(table, present, statement))
            answer = connection.execute(statement)
            return chain.from_iterable(iter(lambda: answer.fetchmany(ROWS_AT_ONCE), []))

        shown = f"{catalog_name}.{name}"
        yield ForeignTable(name=shown, sql='"audited"', columns=present, types=types, ask=ask)


def needed_columns(table: IcebergTable, columns: Columns, statement: str) -> Any:
    """Those of the columns that the statement names, batch by batch."""
    names = filter(None, (columns.topic, columns.partition, columns.offset, columns.timestamp))
    return table.scan(selected_fields=tuple(name for name in names if column_sql(name) in statement)).to_arrow_batch_reader()
