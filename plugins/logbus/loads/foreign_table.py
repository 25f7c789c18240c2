"""A table that others load, read for its audit: which offsets of a topic its rows name, and how often.

Such a table has the topic, the partition and the offset of each row's record in columns of its own: Kafka Connect, the connectors
of Redpanda and of ClickHouse, and Spark all write them, under different names (`PREFIXES`). Nothing in it is changed. Many have
the record's timestamp as well; it says of which hour a row is whose offset says nothing.

The database finds the runs: spans of offsets that all occur equally often. So an hour of a hundred million rows without a fault
is one line, and no list of offsets is ever held. All questions are answered from one snapshot. The statements are the same in
PostgreSQL and in DuckDB, which gets the columns of an Iceberg table batch by batch from pyiceberg, whatever its files, deletes
and types are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from logbus import errors, model
from logbus.loads import target
from logbus.windows.sql_errors import reason_of, refusal_of
from logbus.windows.table_names import TableName, identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

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
        types = target.table_columns(connection, table, with_generated=True)
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
