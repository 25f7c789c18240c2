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
from logbus.aggregates.aggregation import HAS_NEW_LOAD, row_of
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


def all_statuses(connection: sa.Connection, pipeline: str | None = None) -> list[AggregateStatus]:
    """Of every aggregate, or of those of a pipeline, by name."""
    return _statuses(connection, sa.true() if pipeline is None else schema.aggregate.c.pipeline == pipeline)


def status_of(connection: sa.Connection, name: str) -> AggregateStatus:
    row_of(connection, name)
    [status] = _statuses(connection, schema.aggregate.c.name == name)
    return status


def _statuses(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> list[AggregateStatus]:
    """In one statement, however many: pages and each scrape ask for all."""
    aggregate, newest = schema.aggregate, schema.aggregation
    parts = [_in_windows(), _in_hours(), _behind()]
    joined: sa.FromClause = aggregate.outerjoin(newest, newest.c.id == aggregate.c.newest)
    for part in parts:
        joined = joined.outerjoin(part, part.c.name == aggregate.c.name)
    counts = [sa.func.coalesce(column, 0).label(column.name) for part in parts for column in part.c if column.name != "name"]
    of_newest = (newest.c.state, newest.c.ended_at, newest.c.error)
    query = sa.select(aggregate, *of_newest, *counts).select_from(joined).where(chosen).order_by(aggregate.c.name)
    return [
        AggregateStatus(
            aggregate=of_ledger(row),
            **{column.name: int(row[column.name]) for column in counts},
            newest=row["state"],
            ended_at=row["ended_at"],
            error=row["error"],
        )
        for row in connection.execute(query).mappings()
    ]


def _in_windows() -> sa.Subquery:
    window = schema.aggregated_window
    sums = [sa.func.sum(window.c[f"{name}_count"]).label(name) for name in ("untimed", "missing")]
    query = sa.select(window.c.aggregate.label("name"), sa.func.count().label("windows"), *sums)
    return query.group_by(window.c.aggregate).subquery()


def _in_hours() -> sa.Subquery:
    hour = schema.aggregated_hour
    kinds: dict[str, sa.ColumnElement[bool]] = {
        "hours": sa.true(),
        "unaudited": sa.and_(hour.c.audited_at.is_(None), hour.c.kept_because.is_(None)),
        "wrong": sa.func.jsonb_array_length(hour.c.audit_problems) > 0,
        "kept": hour.c.kept_because.is_not(None),
    }
    counts = [sa.func.count().filter(kind).label(name) for name, kind in kinds.items()]
    return sa.select(hour.c.aggregate.label("name"), *counts).group_by(hour.c.aggregate).subquery()


def _behind() -> sa.Subquery:
    aggregate, window, present = schema.aggregate, schema.window, schema.aggregated_window
    is_of = sa.and_(present.c.window_id == window.c.id, present.c.aggregate == aggregate.c.name)
    pairs = aggregate.join(window, window.c.pipeline == aggregate.c.pipeline).outerjoin(present, is_of)
    query = sa.select(aggregate.c.name.label("name"), sa.func.count().label("behind")).select_from(pairs)
    return query.where(HAS_NEW_LOAD).group_by(aggregate.c.name).subquery()


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
