"""Aggregates and streams in PostgreSQL's SQL: their tables, which event hours rows fall into, what the rows of hours and of a
loaded window add up to, and the view of a stream that users read.

The one place where it is written: a run inserts what the proof compares with. Parameters are `topic`, `starts` (of windows),
`hours` (of events), `bucket`, and the values of the condition.

The table has a row for each hour of arrival, window and combination of keys: an hour can be compared with the load of its window,
and replaced by it, without touching another. What is added up further is exact: counts, and sums as `numeric`, which neither
overflow nor depend on an order. Deltas are passed as JSON: in it every value of these types is as it is, and no temporary table
is needed, which an owner made by `logbus roles` may not create.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol

from sqlalchemy import TextClause, text

from logbus import expressions
from logbus.streams.aggregate_definition import WINDOW_START, Aggregate
from logbus.streams.definition import ARRIVED_HOUR, GROUP, Lookup
from logbus.windows.table_names import TableName, by_arrival, parse_table, quoted

HOUR_OF = "date_bin(interval '1 hour', {}, timestamptz 'epoch')"
OF_HOURS = f"{WINDOW_START} >= _hour and {WINDOW_START} < _hour + interval '1 hour'"
EACH_HOUR = "unnest(cast(:hours as timestamptz[])) as _hour"
# The leaves of these windows alone are read.
OF_WINDOWS = "_window_start = any(cast(:starts as timestamptz[]))"


@dataclass(frozen=True, kw_only=True)
class Statements:
    """Of one aggregate, over `source`, the pipeline's table, which has these columns."""

    dialect_of: ClassVar[type[expressions.Dialect]] = expressions.Dialect

    aggregate: Aggregate
    topic: str
    source: TableName
    columns: expressions.Columns
    dialect: expressions.Dialect = field(init=False)
    is_counted: str = field(init=False)  # the condition

    def __post_init__(self) -> None:
        dialect = self.dialect_of(self.columns, quoted)
        dialect.kind_of(self.aggregate.event_time, [expressions.TIMESTAMP], "event_time")
        condition = self.aggregate.condition
        object.__setattr__(self, "dialect", dialect)
        object.__setattr__(self, "is_counted", "true" if condition is None else dialect.condition(condition))

    @property
    def _event_time(self) -> str:
        return quoted(self.aggregate.event_time)

    @property
    def _table(self) -> str:
        return self.aggregate.target.sql

    def stored_columns(self) -> dict[str, str]:
        """What a run writes: name to type."""
        keys = {key: expressions.SPELLINGS.get(self.columns[key], self.columns[key]) for key in self._keys()}
        measures = self.aggregate.measures.items()
        stored = {
            column: kind for name, measure in measures for column, kind in self.dialect.stored_columns(name, measure).items()
        }
        return {WINDOW_START: expressions.TIMESTAMP, **keys, **stored}

    def _keys(self) -> dict[str, str]:
        return {key: self.dialect.key(key) for key in self.aggregate.keys}

    def create_table(self) -> list[TextClause]:
        columns = [f"{quoted(name)} {kind}" for name, kind in self.stored_columns().items()]
        columns[0] += " not null"
        for name, measure in self.aggregate.measures.items():
            for column, expression in self.dialect.computed_columns(name, measure).items():
                columns.append(f"{quoted(column)} {expressions.DOUBLE} generated always as ({expression}) stored")
        return [
            text(f"create table {self._table} ({', '.join(columns)})"),
            text(f"create index on {self._table} ({WINDOW_START})"),
        ]

    def values(self, starts: Collection[datetime] = (), hours: Collection[datetime] = ()) -> dict[str, Any]:
        """The parameters of any of these statements."""
        own = {"topic": self.topic, "bucket": self.aggregate.window, "starts": list(starts), "hours": list(hours)}
        return {**own, **self.dialect.parameters}

    def touched(self) -> TextClause:
        """By window how many of its rows fall into which event hour, of the first `most` hours; null: they have no event time."""
        ranked = f"select touched.*, dense_rank() over (order by hour) as rank from ({self._touched()}) touched"
        return text(f"select _window_start, hour, row_count from ({ranked}) ranked where rank <= :most")

    def touched_of_hours(self) -> TextClause:
        """By window: how many of its rows fall into which of the hours."""
        return text(self._touched(f"{HOUR_OF.format(self._event_time)} = any(cast(:hours as timestamptz[]))"))

    def _touched(self, chosen: str = "true") -> str:
        return (
            f"select _window_start, {HOUR_OF.format(self._event_time)} as hour, count(*) as row_count from {self.source.sql} "
            f"where _topic = :topic and {OF_WINDOWS} and {chosen} group by 1, 2"
        )

    def windows_without_rows(self) -> TextClause:
        """Those of the windows whose rows are gone, with their partition for instance."""
        present = f"select from {self.source.sql} where _topic = :topic and _window_start = start"
        return text(f"select start from unnest(cast(:starts as timestamptz[])) as start where not exists ({present})")

    def computed(self, *, of_windows: bool = True) -> str:
        """The rows that the aggregate has for the hours; without `of_windows` from the whole table, which no index helps with."""
        hour = HOUR_OF.format(self._event_time)
        return self.grouped(f"{OF_WINDOWS if of_windows else 'true'} and {hour} = any(cast(:hours as timestamptz[]))")

    def grouped(self, chosen: str) -> str:
        """What those of the pipeline's rows add up to that are chosen by this condition, and that the aggregate counts."""
        bucket = f"date_bin(cast(:bucket as interval), {self._event_time}, timestamptz 'epoch')"
        keys, measures = self._keys(), self.aggregate.measures.items()
        figures = {
            column: written for name, measure in measures for column, written in self.dialect.aggregated(name, measure).items()
        }
        selected = ", ".join(f"{expression} as {quoted(name)}" for name, expression in {**keys, **figures}.items())
        return (
            f"select {bucket} as {WINDOW_START}, {selected} from {self.source.sql} where _topic = :topic and {chosen} "
            f"and {self.is_counted} group by {', '.join(str(1 + number) for number in range(1 + len(keys)))}"
        )

    def delete_hours(self) -> TextClause:
        return text(f"delete from {self._table} using {EACH_HOUR} where {OF_HOURS}")

    def insert_hours(self) -> TextClause:
        """Gives the number of rows by hour."""
        columns = ", ".join(map(quoted, self.stored_columns()))
        insertion = f"insert into {self._table} ({columns}) {self.computed()} returning {WINDOW_START}"
        return text(f"with inserted as ({insertion}) select {HOUR_OF.format(WINDOW_START)}, count(*) from inserted group by 1")

    def differences(self, *, of_windows: bool) -> TextClause:
        """The rows of hours that are only in the table, or only among what is computed from the pipeline's rows."""
        columns = ", ".join(map(quoted, self.stored_columns()))
        stored = f"select {columns} from {self._table}, {EACH_HOUR} where {OF_HOURS}"
        return only_in_one(stored, f"select {columns} from ({self.computed(of_windows=of_windows)}) computed")

    def hours_between(self, *, of_rows: bool) -> TextClause:
        """The hours in [:since, :until) in which the table has rows; with `of_rows`, or the pipeline has any."""
        hours = f"select {HOUR_OF.format(WINDOW_START)} as hour from {self._table}"
        if of_rows:
            hours += f" union select {HOUR_OF.format(self._event_time)} from {self.source.sql} where _topic = :topic"
        return text(
            f"select distinct hour from ({hours}) hours where hour >= coalesce(cast(:since as timestamptz), '-infinity') "
            "and hour < coalesce(cast(:until as timestamptz), 'infinity') order by hour"
        )


def only_in_one(stored: str, computed: str, by: Sequence[str] = (WINDOW_START,)) -> TextClause:
    """The rows that only one of two selections has: how many there are, and of the first `most` `is_stored` and the columns."""
    return text(
        f"with stored as ({stored}), computed as ({computed}), differing as ("
        "select true as is_stored, * from (table stored except all table computed) only_stored union all "
        "select false, * from (table computed except all table stored) only_computed) "
        f"select count(*) over (), differing.* from differing order by {', '.join(by)} limit :most"
    )


# A stream in PostgreSQL's SQL: the table that epochs add to, the view that users read, and what the rows of a loaded window
# add up to.


NUMERIC = "numeric"
PRIMARY_KEY = (WINDOW_START, ARRIVED_HOUR, GROUP)
OF_HOUR = f"{ARRIVED_HOUR} = cast(:hour as timestamptz)"
DOUBLE_MAX = "1.7976931348623157e308"  # a sum may be more; then it is infinite, as sums of such numbers are


class DeltaDialect(expressions.Dialect):
    """Sums that are added up further."""

    __slots__ = ()

    def sum_type(self, kind: str) -> str:
        return NUMERIC

    def sum_of(self, column: str, kind: str) -> str:
        return f"sum(cast({column} as numeric))"


class LoadedTable(Protocol):
    """The pipeline's table, as the statements about it have it."""

    @property
    def topic(self) -> str: ...
    @property
    def source(self) -> TableName: ...
    @property
    def columns(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class WindowStatements(Statements):
    """Over the rows of a loaded window."""

    dialect_of: ClassVar[type[expressions.Dialect]] = DeltaDialect

    def of_window(self) -> str:
        """What they add up to. Rows without an event time are in no row of the stream."""
        return self.grouped(f"{OF_WINDOWS} and {quoted(self.aggregate.event_time)} is not null")

    def row_count(self) -> TextClause:
        return rows_of_windows(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalTable:
    """Of a stream that is an aggregate; `columns` are those that epochs add to, name to type, in any order."""

    keeps_proven: ClassVar[bool] = True  # rows of an hour after its proof

    aggregate: Aggregate
    columns: Mapping[str, str]
    lookup: Lookup | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What a row of an hour is told apart by."""
        return (WINDOW_START, *self.aggregate.keys)

    @property
    def names(self) -> list[str]:
        """Of what a row stands for, and of its figures, without the hour of arrival."""
        return [*self.keys, *self._sums()]

    def _sums(self) -> dict[str, str]:
        """By the name of a figure the function that adds it up further."""
        functions: dict[str, str] = {}
        for name, measure in self.aggregate.measures.items():
            match measure.function:
                case "avg":
                    functions |= {f"{name}_sum": "sum", f"{name}_count": "sum"}
                case "min" | "max":
                    functions[name] = measure.function
                case _:
                    functions[name] = "sum"
        return functions

    @property
    def _table(self) -> str:
        return by_arrival(self.aggregate.table).sql

    @property
    def _listed(self) -> str:
        return ", ".join(map(quoted, self.names))

    def create_table(self) -> list[TextClause]:
        columns = [f"{quoted(name)} {self.columns[name]}" for name in self.names]
        columns[0] += " not null"
        listed = ", ".join(
            (
                f"{ARRIVED_HOUR} timestamptz not null",
                *columns,
                f"{GROUP} uuid not null",
                f"primary key ({', '.join(PRIMARY_KEY)})",
            )
        )
        return [
            # Room in the pages: most rows of the hour that arrives now are updated by every epoch.
            text(f"create table {self._table} ({listed}) with (fillfactor = 70)"),
            text(f"create index on {self._table} ({ARRIVED_HOUR})"),
        ]

    def create_view(self, loaded: LoadedTable) -> TextClause:
        return text(f"create view {self.aggregate.target.sql} as {self._over_all_hours(loaded.columns)}")

    def _over_all_hours(self, columns_of_pipeline: Mapping[str, str]) -> str:
        """The measures as an aggregate has them."""
        plain = expressions.Dialect(columns_of_pipeline, quoted)
        stored = (plain.stored_columns(name, measure) for name, measure in self.aggregate.measures.items())
        kinds = {column: kind for columns in stored for column, kind in columns.items()}
        keys, source = [*self.keys], self._table
        if self.lookup is not None:
            keys = [name for name in keys if name != self.lookup.on] + [*self.lookup.columns]
            source = self._looked_up(self.lookup)
        selected = [*map(quoted, keys)]
        for name, function in self._sums().items():
            column, kind = quoted(name), kinds[name]
            whole = f"{function}({expressions.by_bytes(column, kind)}){expressions.plain(kind)}"
            is_double = function == "sum" and kind == expressions.DOUBLE
            typed = _as_double(whole) if is_double else f"cast({whole} as {kind})"
            selected.append(f"{typed} as {column}")
        for name, measure in self.aggregate.measures.items():
            if measure.function == "avg":
                total, count = (f"sum({quoted(f'{name}_{part}')})" for part in ("sum", "count"))
                selected.append(f"cast({total} / nullif({count}, 0) as {expressions.DOUBLE}) as {quoted(name)}")
        numbers = ", ".join(str(1 + number) for number in range(len(keys)))
        return f"select {', '.join(selected)} from {source} group by {numbers}"

    def _looked_up(self, lookup: Lookup) -> str:
        columns = [f"counted.{quoted(name)}" for name in self.names if name != lookup.on]
        columns += [f"lookup.{quoted(name)}" for name in lookup.columns]
        on = quoted(lookup.on)
        joined = f"{self._table} as counted left join {lookup.target.sql} as lookup on lookup.{on} = counted.{on}"
        return f"(select {', '.join(columns)} from {joined}) as looked_up"

    def add(self) -> TextClause:
        """Adds `deltas`: JSON, of each group one row."""
        kinds = {ARRIVED_HOUR: expressions.TIMESTAMP, **{name: self.columns[name] for name in self.names}}
        columns = ", ".join(map(quoted, kinds))
        typed = ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())
        sums = ", ".join(f"{quoted(name)} = {self._merged(name, function)}" for name, function in self._sums().items())
        return text(
            f"insert into {self._table} as stored ({columns}, {GROUP}) select {columns}, {self._group()} "
            f"from json_to_recordset(cast(:deltas as json)) as delta ({typed}) "
            f"on conflict ({', '.join(PRIMARY_KEY)}) do update set {sums}"
        )

    def _group(self) -> str:
        """The same for keys that are the same, nulls included, and whatever the session's settings."""
        is_instant = {key: self.columns[key] == expressions.TIMESTAMP for key in self.aggregate.keys}
        parts = [f"{quoted(key)} at time zone 'UTC'" if is_instant[key] else quoted(key) for key in is_instant]
        digest = f"sha256(convert_to(cast(jsonb_build_array({', '.join(parts)}) as text), 'UTF8'))"
        return f"cast(encode(substring({digest} for 16), 'hex') as uuid)"

    def _merged(self, name: str, function: str) -> str:
        stored, added = f"stored.{quoted(name)}", f"excluded.{quoted(name)}"
        if function == "sum":
            return f"coalesce({stored} + {added}, {stored}, {added})"
        kind, chosen = self.columns[name], "least" if function == "min" else "greatest"
        return f"{chosen}({', '.join(expressions.by_bytes(side, kind) for side in (stored, added))}){expressions.plain(kind)}"

    def delete_hours(self) -> TextClause:
        """Of these `hours`, and of all from `since` on; null: of no others."""
        return deletion_of_hours(self._table)

    def row_count(self) -> TextClause:
        return rows_of_hours(self._table)

    def differences(self, computed: str | None) -> TextClause:
        """The rows that only the stream has of an hour, or only what is computed; None: nothing is."""
        stored = f"select {self._listed} from {self._table} where {OF_HOUR}"
        return only_in_one(stored, self._of_load(computed), by=self.keys[:1])

    def deltas_of(self, computed: str) -> TextClause:
        """What is computed, as `add` takes it."""
        hour = f"cast(:hour as timestamptz) as {ARRIVED_HOUR}"
        return text(f"select cast(json_agg(delta) as text) from (select {hour}, computed.* from ({computed}) computed) delta")

    def _of_load(self, computed: str | None) -> str:
        if computed is None:
            return f"select {self._listed} from {self._table} where false"
        return f"select {self._listed} from ({computed}) computed"

    def drop(self) -> list[TextClause]:
        return drops(self.aggregate.table)


def rows_of_windows(source: TableName) -> TextClause:
    """How many the pipeline's table has of the windows."""
    return text(f"select count(*) from {source.sql} where _topic = :topic and {OF_WINDOWS}")


def deletion_of_hours(table: str) -> TextClause:
    is_chosen = f"{ARRIVED_HOUR} = any(cast(:hours as timestamptz[])) or {ARRIVED_HOUR} >= cast(:since as timestamptz)"
    return text(f"delete from {table} where {is_chosen}")


def rows_of_hours(table: str) -> TextClause:
    """How many there are of the `hours`, counted to `most`."""
    return text(
        f"select count(*) from (select from {table} where {ARRIVED_HOUR} = any(cast(:hours as timestamptz[])) limit :most) h"
    )


def drops(view: str) -> list[TextClause]:
    return [text(f"drop view if exists {parse_table(view).sql}"), text(f"drop table if exists {by_arrival(view).sql}")]


def _as_double(total: str) -> str:
    is_beyond, double = f"abs({total}) > {DOUBLE_MAX} and abs({total}) < 'Infinity'", expressions.DOUBLE
    return f"case when {is_beyond} then sign({total}) * cast('Infinity' as {double}) else cast({total} as {double}) end"
