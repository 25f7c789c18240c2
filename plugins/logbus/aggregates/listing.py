"""What the ledger knows of aggregates: which there are, how far each is behind, and what is in each of its hours. And how one is
forgotten, with its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from logbus import errors, model
from logbus.aggregates.aggregation import new_loads, row_of
from logbus.aggregates.definition import Aggregate, of_ledger
from logbus.windows import schema, sql_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateStatus:
    """`behind`: windows whose load is not in it. `untimed`: rows without an event time, which are in no hour; `missing`: rows
    that were gone with their partitions before it was made. `kept`: hours that could not be computed again. `newest`: the state
    of its newest aggregation, and the error that ended it."""

    aggregate: Aggregate
    windows: int
    behind: int
    untimed: int
    missing: int
    hours: int
    unaudited: int
    wrong: int
    kept: int
    newest: str | None
    ended_at: datetime | None
    error: str | None

    @property
    def verdict(self) -> str:
        states = {"wrong": self.wrong, "behind": self.behind, "not audited": self.unaudited, "kept": self.kept}
        return next((state for state, count in states.items() if count), "exact")

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("windows", "behind", "untimed", "missing", "hours", "unaudited", "wrong", "kept", "verdict", "error")
        return {
            "name": self.aggregate.name,
            "pipeline": self.aggregate.pipeline,
            "table": self.aggregate.table,
            **self.aggregate.definition(),
            **{name: getattr(self, name) for name in same},
            "newest_aggregation": self.newest,
            "ended_at": self.ended_at and model.instant_text(self.ended_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HourStatus:
    """An event hour: its rows in the aggregate, and the windows and rows of the pipeline that touch it."""

    hour: datetime
    rows: int
    windows: int
    touching_rows: int
    aggregation: int
    audited_at: datetime | None
    problems: Sequence[str]
    kept_because: str | None

    @property
    def verdict(self) -> str:
        if self.kept_because is not None:
            return "kept"
        return "not audited" if self.audited_at is None else "wrong" if self.problems else "exact"

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("rows", "windows", "touching_rows", "aggregation", "verdict")
        audited_at = self.audited_at and model.instant_text(self.audited_at)
        of_audit = {"audited_at": audited_at, "problems": list(self.problems), "kept_because": self.kept_because}
        return {"hour": model.instant_text(self.hour), **{name: getattr(self, name) for name in same}, **of_audit}


def all_statuses(connection: sa.Connection) -> list[AggregateStatus]:
    query = sa.select(schema.aggregate.c.name).order_by(schema.aggregate.c.name)
    return [status_of(connection, name) for name in connection.scalars(query)]


def status_of(connection: sa.Connection, name: str) -> AggregateStatus:
    row = row_of(connection, name)
    window, hour, newest = schema.aggregated_window, schema.aggregated_hour, schema.aggregation
    sums = [sa.func.coalesce(sa.func.sum(column), 0) for column in (window.c.untimed_count, window.c.missing_count)]
    windows, untimed, missing = connection.execute(sa.select(sa.func.count(), *sums).where(window.c.aggregate == name)).one()
    is_wrong = sa.func.jsonb_array_length(hour.c.audit_problems) > 0
    is_due = sa.and_(hour.c.audited_at.is_(None), hour.c.kept_because.is_(None))
    kinds = (sa.true(), is_due, is_wrong, hour.c.kept_because.is_not(None))
    counts: list[sa.ColumnElement[Any]] = [sa.func.count().filter(kind) for kind in kinds]
    hours, unaudited, wrong, kept = connection.execute(sa.select(*counts).where(hour.c.aggregate == name)).one()
    of_newest = sa.select(newest.c.state, newest.c.ended_at, newest.c.error).where(newest.c.id == row["newest"])
    state, ended_at, error = connection.execute(of_newest).one_or_none() or (None, None, None)
    aggregate = of_ledger(row)
    return AggregateStatus(
        aggregate=aggregate,
        windows=windows,
        behind=len(new_loads(connection, aggregate)),
        untimed=int(untimed),
        missing=int(missing),
        hours=hours,
        unaudited=unaudited,
        wrong=wrong,
        kept=kept,
        newest=state,
        ended_at=ended_at,
        error=error,
    )


def hours_of(connection: sa.Connection, name: str, since: datetime | None, until: datetime | None) -> list[HourStatus]:
    """Those that begin in [since, until)."""
    hour, touched = schema.aggregated_hour, schema.touched_hour
    is_same = sa.and_(touched.c.aggregate == hour.c.aggregate, touched.c.hour == hour.c.hour)
    query = (
        sa.select(hour, sa.func.count(touched.c.window_id), sa.func.coalesce(sa.func.sum(touched.c.row_count), 0))
        .select_from(hour.outerjoin(touched, is_same))
        .where(hour.c.aggregate == name)
        .group_by(*hour.primary_key.columns)
        .order_by(hour.c.hour)
    )
    query = query if since is None else query.where(hour.c.hour >= since)
    query = query if until is None else query.where(hour.c.hour < until)
    return [
        HourStatus(
            hour=row.hour,
            rows=row.row_count,
            windows=windows,
            touching_rows=int(touching),
            aggregation=row.aggregation,
            audited_at=row.audited_at,
            problems=tuple(row.audit_problems or ()),
            kept_because=row.kept_because,
        )
        for row in connection.execute(query)
        for windows, touching in [row[-2:]]
    ]


# In an order that violates no foreign key.
OF_AGGREGATE = (schema.touched_hour, schema.aggregated_window, schema.aggregated_hour, schema.aggregation)


def drop(engine: sa.Engine, name: str) -> None:
    """Forgets an aggregate and drops its table, if a run has made one. A run that is at work on it is refused when it commits."""
    with engine.begin() as connection:
        row = row_of(connection, name, lock=True)
        aggregate = of_ledger(row)
        if row["columns"] is not None:
            try:
                connection.execute(sa.text(f"drop table if exists {aggregate.target.sql}"))
            except DBAPIError as error:
                if sql_errors.sqlstate_of(error) != sql_errors.DEPENDENT_OBJECTS:
                    raise
                raise errors.UserError(f"something depends on table {aggregate.table}: drop that first ({error.orig})") from error
        for table in OF_AGGREGATE:
            connection.execute(sa.delete(table).where(table.c.aggregate == name))
        connection.execute(sa.delete(schema.aggregate).where(schema.aggregate.c.name == name))
