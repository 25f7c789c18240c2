"""What the ledger knows of aggregates: which there are, how far each is behind, and what is in each of its hours; and the proof
of one: its rows of chosen event hours, compared one by one with what the pipeline's rows add up to.

Both sides of the proof are read in one snapshot. Windows whose load is newer than the aggregate touch hours in which the two
rightly differ: these hours are left out, as behind; and so are those of which rows are gone with old partitions, as kept.
Otherwise not a single row may differ. By default the windows are read that touch the hours by the ledger's word, whose counts
were compared with those of the loads when it was written; a full proof takes no such word, and reads the pipeline's whole table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from logbus import errors, model
from logbus.formatting import many, several
from logbus.streams.aggregate_definition import WINDOW_START, Aggregate, of_ledger
from logbus.streams.hourly_aggregates import (
    HAS_NEW_LOAD,
    begin_snapshot,
    new_loads,
    row_of,
    starts_touching,
    statements_of,
    touched_hours,
)
from logbus.streams.statements import Statements
from logbus.windows import rows, schema, sql_errors


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


def drop_aggregate(engine: sa.Engine, name: str) -> None:
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


# The proof of an aggregate: its rows of chosen event hours, compared one by one with what the pipeline's rows add up to.


HOURS_AT_ONCE = 168  # one snapshot each: a week
DIFFERENCES_MAX = 1_000  # rows that one statement fetches, and of which some are shown
PROBLEMS_KEPT_MAX = 20  # of an hour, in the ledger
PROBLEMS_SHOWN_MAX = 10  # in an error

EXACT, WRONG, BEHIND, KEPT = VERDICTS = ("exact", "wrong", "behind", "kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class HourProof:
    """`problems`: rows that differ, each as a sentence; `behind` and `kept` hours were not compared."""

    hour: datetime
    verdict: str
    problems: Sequence[str] = ()

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"hour": model.instant_text(self.hour), "verdict": self.verdict, "problems": list(self.problems)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateProof:
    """The verdict on each hour that was asked about, by hour."""

    aggregate: str
    hours: Sequence[HourProof]

    def of(self, verdict: str) -> list[datetime]:
        return [hour.hour for hour in self.hours if hour.verdict == verdict]

    def failure(self) -> str:
        problems = [f"{model.instant_text(hour.hour)}: {problem}" for hour in self.hours for problem in hour.problems]
        return (
            f"aggregate {self.aggregate} is wrong in {many(len(self.of('wrong')), 'hour')}: "
            f"{several(problems, PROBLEMS_SHOWN_MAX, separator='; ')}"
        )

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        counts = {verdict: len(self.of(verdict)) for verdict in VERDICTS}
        return {"aggregate": self.aggregate, **counts, "hours": [hour.summary() for hour in self.hours]}


def prove_unaudited(engine: sa.Engine, name: str, now: datetime, *, run_id: str | None = None) -> AggregateProof:
    """Of the hours that were written since they were last compared, and of those that were wrong then; with `run_id`, also of all
    that this run has written: an audit that was killed has told nobody of what it had compared."""
    row_in, run = schema.aggregated_hour, schema.aggregation
    of_run = sa.select(run.c.id).where(run.c.aggregate == name, run.c.run_id == run_id)
    is_due = sa.or_(
        row_in.c.audited_at.is_(None),
        sa.func.jsonb_array_length(row_in.c.audit_problems) > 0,
        row_in.c.aggregation.in_(of_run),
    )
    query = sa.select(row_in.c.hour).where(row_in.c.aggregate == name, is_due).order_by(row_in.c.hour)
    with engine.connect() as connection:
        row_of(connection, name)
        hours = list(connection.scalars(query))
    return _prove(engine, name, hours, now)


def prove_span(
    engine: sa.Engine,
    name: str,
    now: datetime,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    is_full: bool = False,
) -> AggregateProof:
    """Of all hours that begin in [since, until): those in the ledger, and those of which the table has rows. A full proof also
    looks for hours of the pipeline's rows that neither of them has."""
    row_in = schema.aggregated_hour
    listed = [row_in.c.aggregate == name]
    listed += [] if since is None else [row_in.c.hour >= since]
    listed += [] if until is None else [row_in.c.hour < until]
    with engine.connect() as connection:
        row = row_of(connection, name)
        hours = set(connection.scalars(sa.select(row_in.c.hour).where(*listed)))
        statements = statements_of(connection, of_ledger(row)) if row["columns"] else None
        if statements is not None:
            span = {**statements.values(), "since": since, "until": until}
            hours |= set(connection.scalars(statements.hours_between(of_rows=is_full), span))
    return _prove(engine, name, sorted(hours), now, is_full=is_full)


def _prove(engine: sa.Engine, name: str, hours: Sequence[datetime], now: datetime, *, is_full: bool = False) -> AggregateProof:
    proofs: list[HourProof] = []
    for first in range(0, len(hours), HOURS_AT_ONCE):
        proofs += _prove_together(engine, name, hours[first : first + HOURS_AT_ONCE], now, is_full)
    return AggregateProof(aggregate=name, hours=proofs)


def _prove_together(engine: sa.Engine, name: str, hours: Sequence[datetime], now: datetime, is_full: bool) -> list[HourProof]:
    row_in = schema.aggregated_hour
    chosen = (row_in.c.aggregate == name, rows.among(row_in.c.hour, hours))
    with engine.connect() as connection:
        before = statements_of(connection, of_ledger(row_of(connection, name)))
    with engine.begin() as connection:
        begin_snapshot(connection, None if before is None else before.source)
        row = row_of(connection, name)
        statements = statements_of(connection, of_ledger(row))
        if before is None or statements is None:  # the pipeline's table is gone, and all rows with it
            return [HourProof(hour=hour, verdict=KEPT) for hour in hours]
        in_ledger = {hour.hour: hour for hour in connection.execute(sa.select(row_in).where(*chosen))}
        not_compared = dict.fromkeys((hour for hour in in_ledger if in_ledger[hour].kept_because is not None), KEPT)
        not_compared |= dict.fromkeys(_hours_without_rows(connection, statements, hours), KEPT)
        not_compared |= dict.fromkeys(_hours_behind(connection, statements), BEHIND)
        compared = [hour for hour in hours if hour not in not_compared]
        problems = _differences(connection, statements, compared, is_full=is_full)
    # In a transaction of its own: a run that has written an hour since then has not to wait, and its rows were not compared.
    with engine.begin() as connection:
        for hour in compared:
            verdict = {"audited_at": now, "audit_problems": problems.get(hour, [])[:PROBLEMS_KEPT_MAX]}
            # Rows of an hour that no run has written: the next one deletes them.
            unknown = {"aggregate": name, "hour": hour, "aggregation": row["newest"], "row_count": 0}
            if hour in in_ledger:
                is_same = (row_in.c.hour == hour, row_in.c.aggregation == in_ledger[hour].aggregation)
                connection.execute(sa.update(row_in).where(row_in.c.aggregate == name, *is_same).values(verdict))
            else:
                connection.execute(insert(row_in).values(**unknown, **verdict).on_conflict_do_nothing())
    verdicts = {hour: not_compared.get(hour, WRONG if hour in problems else EXACT) for hour in hours}
    return [HourProof(hour=hour, verdict=verdicts[hour], problems=problems.get(hour, ())) for hour in hours]


def _hours_behind(connection: sa.Connection, statements: Statements) -> set[datetime]:
    """Hours that new loads touched before or touch now."""
    loads = new_loads(connection, statements.aggregate)
    if not loads:
        return set()
    hour = schema.touched_hour
    is_theirs = (
        hour.c.aggregate == statements.aggregate.name,
        rows.among(hour.c.window_id, [load.window_id for load in loads]),
    )
    before = set(connection.scalars(sa.select(hour.c.hour).where(*is_theirs)))
    counted = touched_hours(connection, statements, loads)
    return before | {hour for hours in counted.values() for hour in hours if hour is not None}


def _hours_without_rows(connection: sa.Connection, statements: Statements, hours: Sequence[datetime]) -> list[datetime]:
    """Hours that windows touch whose rows are gone, all of them: partitions that were dropped because they are old."""
    starts = starts_touching(connection, statements.aggregate, hours)
    gone = list(connection.scalars(statements.windows_without_rows(), statements.values(starts)))
    hour, window = schema.touched_hour, schema.window
    query = sa.select(hour.c.hour).join(window, window.c.id == hour.c.window_id).where(rows.among(window.c.starts_at, gone))
    return list(connection.scalars(query.where(hour.c.aggregate == statements.aggregate.name))) if gone else []


def _differences(
    connection: sa.Connection, statements: Statements, hours: Sequence[datetime], *, is_full: bool
) -> dict[datetime, list[str]]:
    """By hour the rows that differ, each as a sentence."""
    problems: dict[datetime, list[str]] = {}
    keys = (WINDOW_START, *statements.aggregate.keys)
    while hours:
        starts = [] if is_full else starts_touching(connection, statements.aggregate, hours)
        parameters = {**statements.values(starts, hours), "most": DIFFERENCES_MAX}
        differing = connection.execute(statements.differences(of_windows=not is_full), parameters).all()
        for start, sentence in difference_sentences([*statements.stored_columns()], keys, differing):
            problems.setdefault(model.Grid().floor(start), []).append(sentence)
        is_cut = bool(differing) and differing[0][0] > len(differing)
        # Rows come by their hours. Those of later ones were not fetched, and must not pass for equal.
        hours = [hour for hour in hours if hour > max(problems)] if is_cut else []
    return problems


def difference_sentences(
    columns: Sequence[str], keys: Sequence[str], differing: Iterable[Sequence[Any]]
) -> list[tuple[Any, str]]:
    """What `statements.only_in_one` finds, a sentence for each group that differs, by the first of its keys."""
    pairs: dict[tuple[Any, ...], dict[bool, Mapping[str, Any]]] = {}
    for _, is_stored, *values in differing:
        row = dict(zip(columns, values, strict=True))
        pairs.setdefault(tuple(row[key] for key in keys), {})[is_stored] = row
    return [(key[0], _sentence(keys, key, sides.get(True), sides.get(False))) for key, sides in pairs.items()]


def _sentence(
    keys: Sequence[str], key: Sequence[Any], stored: Mapping[str, Any] | None, computed: Mapping[str, Any] | None
) -> str:
    """`2015-05-17T10:05:00Z, status 200: requests is 7, the rows give 8`."""
    named = ", ".join(
        model.instant_text(value) if name == WINDOW_START else f"{name} {value}" for name, value in zip(keys, key, strict=True)
    )
    if stored is None:
        return f"{named}: no row, and the pipeline's rows give one"
    if computed is None:
        return f"{named}: a row, and the pipeline's rows give none"
    # Python's NaN differs from itself, PostgreSQL's does not.
    is_other = {name: stored[name] != computed[name] and str(stored[name]) != str(computed[name]) for name in stored}
    differing = [name for name in stored if name not in keys and is_other[name]]
    return f"{named}: " + ", ".join(f"{name} is {stored[name]}, the rows give {computed[name]}" for name in differing)


def refuse_wrong(proof: AggregateProof) -> None:
    if proof.of(WRONG):
        raise errors.AuditMismatch(proof.failure())
