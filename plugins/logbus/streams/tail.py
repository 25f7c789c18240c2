"""Live rows: what differs for a stream that is no aggregate. Its tasks return chosen columns of the rows that they have parsed,
the table has these rows until their hour is proven, and the view shows them until they are loaded.

The view is the pipeline's loaded rows and the tail's of those hours of which nothing is loaded. Whether an hour is loaded it asks
the pipeline's table and not the ledger. A load attaches the hour's rows as a partition, and a statement sees those partitions
that it was planned with: the ledger may be newer than them, and then the hour would be in neither half. Asked twice in one
statement, the same table gives the same answer. So each record is in the view once, whatever is loaded meanwhile; except that a
window which is frozen otherwise than foreseen (logbus.streams.epochs) may show a record twice, or not, if it is loaded
before the stream has repaired its hour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
from sqlalchemy import TextClause, text

from logbus import errors, expressions
from logbus.parsing.batches import TIMESTAMP, arrow_type
from logbus.streams.definition import ARRIVED_HOUR, ORIGIN, LiveRows
from logbus.streams.statements import (
    OF_HOUR,
    OF_WINDOWS,
    LoadedTable,
    deletion_of_hours,
    drops,
    only_in_one,
    rows_of_hours,
    rows_of_windows,
)
from logbus.windows.table_names import TableName, by_arrival, parse_table, quoted

JSONB = "jsonb"


def chosen_columns(rows: LiveRows, columns: Mapping[str, str]) -> dict[str, str]:
    """Of what a row has beside its hour of arrival, name to type. `UserError` for a column that there is not."""
    if missing := [name for name in rows.columns if name not in columns]:
        others = ", ".join(name for name in columns if name not in ORIGIN)
        raise errors.UserError(f"stream {rows.name!r}: {rows.pipeline} has no column {missing[0]!r}; it has {others}")
    return {name: expressions.SPELLINGS.get(columns[name], columns[name]) for name in (*ORIGIN, *rows.columns)}


class RowCollector:
    """What a task returns, and the driver puts together, as `Aggregator` does it for sums."""

    def __init__(self, rows: LiveRows, columns: Mapping[str, str]) -> None:
        self._chosen = chosen_columns(rows, columns)
        kinds = ((name, arrow_type(kind)) for name, kind in self._chosen.items())
        self.schema = pa.schema([(ARRIVED_HOUR, TIMESTAMP), *kinds])
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch, arrived_hour: datetime) -> int:
        """Takes in the rows of one interval of arrival; how many of them are left out."""
        hours = pa.repeat(pa.scalar(arrived_hour, TIMESTAMP), len(rows))
        columns = [hours, *(rows.column(name) for name in self._chosen)]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return 0

    def result(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, self.schema)

    def merge(self, results: Iterable[pa.Table]) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *results])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRows:
    """The rows of loaded windows in `source`, the pipeline's table."""

    rows: LiveRows
    topic: str
    source: TableName
    columns: Mapping[str, str]

    def stored_columns(self) -> dict[str, str]:
        """What the tail has beside the hour of arrival: name to type."""
        return chosen_columns(self.rows, self.columns)

    def values(self, starts: Collection[datetime] = ()) -> dict[str, Any]:
        """The parameters of any of these statements."""
        return {"topic": self.topic, "starts": list(starts)}

    def of_window(self) -> str:
        listed = ", ".join(map(quoted, self.stored_columns()))
        return f"select {listed} from {self.source.sql} where _topic = :topic and {OF_WINDOWS}"

    def row_count(self) -> TextClause:
        return rows_of_windows(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The table of a stream of rows; `columns` are those that epochs add, name to type."""

    keeps_proven: ClassVar[bool] = False  # rows of an hour after its proof: from then on the loaded ones are enough

    rows: LiveRows
    columns: Mapping[str, str]

    @property
    def keys(self) -> tuple[str, ...]:
        """What a row of an hour is told apart by."""
        return ORIGIN[:2]

    @property
    def names(self) -> list[str]:
        return [*ORIGIN, *self.rows.columns]

    @property
    def _table(self) -> str:
        return by_arrival(self.rows.table).sql

    @property
    def _listed(self) -> str:
        return ", ".join(map(quoted, self.names))

    def create_table(self) -> list[TextClause]:
        columns = [f"{ARRIVED_HOUR} timestamptz not null", *(f"{quoted(name)} {self.columns[name]}" for name in self.names)]
        key = ", ".join((ARRIVED_HOUR, *self.keys))
        indexes = [text(f"create index on {self._table} ({quoted(name)})") for name in self.rows.indexed]
        return [text(f"create table {self._table} ({', '.join(columns)}, primary key ({key}))"), *indexes]

    def create_view(self, loaded: LoadedTable) -> TextClause:
        source, of_topic = loaded.source.sql, f"_topic = '{loaded.topic}'"
        # The hours by steps in the index. Behind `offset 0` one row of each is looked for, instead of all rows joined.
        first = f"select min({ARRIVED_HOUR}) from {self._table}"
        following = f"select ({first} where {ARRIVED_HOUR} > hour.start) from hour where hour.start is not null"
        is_loaded = f"exists (select from {source} loaded where {of_topic} and _window_start = hour.start offset 0)"
        hours = f"with recursive hour (start) as ({first} union all {following}) select start from hour where {is_loaded}"
        return text(
            f"create view {parse_table(self.rows.table).sql} as "
            f"select _window_start as {ARRIVED_HOUR}, {self._listed} from {source} where {of_topic} "
            f"union all select {ARRIVED_HOUR}, {self._listed} from {self._table} where {ARRIVED_HOUR} <> all (array({hours}))"
        )

    def add(self) -> TextClause:
        """Adds `deltas`: JSON, an object for each row. JSON within it is text."""
        kinds = {ARRIVED_HOUR: expressions.TIMESTAMP, **{name: self.columns[name] for name in self.names}}
        typed = ", ".join(f"{quoted(name)} {'text' if kind == JSONB else kind}" for name, kind in kinds.items())
        values = (f"cast({quoted(name)} as {JSONB})" if kind == JSONB else quoted(name) for name, kind in kinds.items())
        return text(
            f"insert into {self._table} ({', '.join(map(quoted, kinds))}) select {', '.join(values)} "
            f"from json_to_recordset(cast(:deltas as json)) as delta ({typed})"
        )

    def delete_hours(self) -> TextClause:
        """Of these `hours`, and of all from `since` on; null: of no others."""
        return deletion_of_hours(self._table)

    def row_count(self) -> TextClause:
        return rows_of_hours(self._table)

    def differences(self, computed: str | None) -> TextClause:
        """The rows that only the stream has of an hour, or only the load; None: nothing is loaded."""
        stored = f"select {self._listed} from {self._table} where {OF_HOUR}"
        return only_in_one(stored, computed or f"select {self._listed} from {self._table} where false", by=self.keys)

    def deltas_of(self, computed: str) -> TextClause:
        """Nothing takes their place: the view shows the loaded rows."""
        return text("select '[]'")

    def drop(self) -> list[TextClause]:
        return drops(self.rows.table)
