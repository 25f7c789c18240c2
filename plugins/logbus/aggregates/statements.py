"""An aggregate in PostgreSQL's SQL: its table, which event hours rows fall into, and what the rows of hours add up to.

The one place where it is written: a run inserts what the proof compares with. Parameters are `topic`, `starts` (of windows),
`hours` (of events), `bucket`, and the values of the condition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import TextClause, text

from logbus import expressions
from logbus.aggregates.definition import WINDOW_START, Aggregate
from logbus.windows.table_names import TableName, quoted

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
