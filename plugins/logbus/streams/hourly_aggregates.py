"""Bringing an aggregate up to date: the event hours that a load touched are computed again, and no others.

An hour of the ledger is an interval of arrival; an event hour is another thing: rows that come late lie in a later window, and in
the event hour of their own time. So for each window the ledger keeps which event hours its rows touch. Where the load of a window
is new (its first, a reload, a redrive), the hours that it touched before and touches now are deleted and inserted again, each
computed over all windows that touch it. An aggregate that is defined after a year of loads begins with a year of new windows.

All of a step is one transaction over one snapshot: what the table holds when it ends is exactly what the loads that
`aggregated_window` names add up to. The pipeline's table is locked before the snapshot is taken: a large reload swaps the leaf
of its window, and in an older snapshot the new leaf would be empty. No load waits for that lock; its swap becomes a delete and
insert.

Partitions of the pipeline's table may be gone, dropped because they are old, while the aggregate is to stay. So an hour is
computed again only if all rows are there that were counted in it; otherwise it is kept as it is, and the ledger says why.

The fence is the aggregate's newest aggregation: beginning one ends the right of all older ones to write, however late they wake.
A killed run leaves the steps that it has committed, and the next one goes on after them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from logbus import errors, formatting, model
from logbus.loads import target
from logbus.streams.aggregate_definition import Aggregate, of_ledger
from logbus.streams.statements import Statements
from logbus.windows import registration, rows, schema, sql_errors
from logbus.windows.migrations import create_schema
from logbus.windows.table_names import TableName, parse_table

# New windows that one transaction takes: a week of hours. Reloaded ones are taken together, since the hours of one may be those
# of another.
STEP_WINDOWS_MAX = 168
# Event hours of one step. More are not what happened: eleven years, or times that are no times.
TOUCHED_HOURS_MAX = 100_000
# Of a step in whose snapshot somebody has changed a row since: an audit that was quicker.
TRIES_MAX = 5
LOCK_TIMEOUT_MS = 60_000  # a merge of leaves holds the pipeline's table for seconds

SNAPSHOT = sa.text("set transaction isolation level repeatable read")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLoad:
    """A window whose load is new to the aggregate. `is_new`: no load of it is in the aggregate yet."""

    window_id: int
    start: datetime
    attempt: int
    count: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """What a run did. `hours`: those that it wrote again; `kept`: why others stayed as they were."""

    aggregation: int
    windows: int = 0
    rows: int = 0
    hours: Sequence[datetime] = ()
    kept: Mapping[datetime, str] = field(default_factory=dict)
    is_last: bool = True  # of the steps

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        hours, kept = ([model.instant_text(hour) for hour in group] for group in (self.hours, self.kept))
        return {"aggregation": self.aggregation, "windows": self.windows, "rows": self.rows, "hours": hours, "kept": kept}


def define(engine: sa.Engine, aggregate: Aggregate, now: datetime) -> None:
    """Puts it into the ledger. `WrongRequest` if another is there under its name, or its table belongs to somebody else."""
    values = {
        "name": aggregate.name,
        "pipeline": aggregate.pipeline,
        "table_name": aggregate.table,
        "definition": aggregate.definition(),
    }
    with engine.begin() as connection:
        pipeline = rows.to_pipeline(rows.pipeline_row(connection, aggregate.pipeline, share=True))
        if pipeline.options.sink != "postgres":
            raise errors.WrongRequest(
                f"aggregate {aggregate.name!r}: pipeline {pipeline.name!r} loads into {pipeline.options.sink}, and aggregates "
                "are computed in the transaction of a PostgreSQL that holds the rows"
            )
        registration.refuse_table_of_others(connection, aggregate.target, "aggregate", aggregate.name)
        connection.execute(insert(schema.aggregate).values(**values, registered_at=now).on_conflict_do_nothing())
        present = of_ledger(row_of(connection, aggregate.name))
    if present != aggregate:
        raise errors.WrongRequest(
            f"aggregate {aggregate.name!r} is defined already, as {present.words()} of {present.pipeline} in {present.table}. "
            f"Give this one another name; or `logbus aggregate drop {aggregate.name}` drops that one, and the next run makes this"
        )


def row_of(connection: sa.Connection, name: str, *, lock: bool = False) -> Mapping[Any, Any]:
    query = sa.select(schema.aggregate).where(schema.aggregate.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise errors.AggregateUnknown(f"there is no aggregate {name!r}; `logbus aggregate ls` lists them")
    return row


def statements_of(connection: sa.Connection, aggregate: Aggregate) -> Statements | None:
    """None as long as the pipeline has loaded nothing."""
    pipeline = rows.pipeline_row(connection, aggregate.pipeline)
    source = parse_table(pipeline["table_name"])
    columns = target.table_columns(connection, source, with_generated=True)
    return Statements(aggregate=aggregate, topic=pipeline["topic"], source=source, columns=columns) if columns else None


# A window joined with what the aggregate has of it: is its load another one, or is there none?
HAS_NEW_LOAD = sa.and_(
    schema.window.c.loaded_attempt.is_not(None),
    sa.or_(
        schema.aggregated_window.c.window_id.is_(None),
        schema.aggregated_window.c.loaded_attempt != schema.window.c.loaded_attempt,
        schema.aggregated_window.c.loaded_count != schema.window.c.loaded_count,
    ),
)


def new_loads(connection: sa.Connection, aggregate: Aggregate) -> list[NewLoad]:
    """Windows of which the aggregate has another load, or none; those that it has none of last, and by their starts."""
    window, present = schema.window, schema.aggregated_window
    is_of = sa.and_(present.c.window_id == window.c.id, present.c.aggregate == aggregate.name)
    query = (
        sa.select(window.c.id, window.c.starts_at, window.c.loaded_attempt, window.c.loaded_count, present.c.window_id.is_(None))
        .select_from(window.outerjoin(present, is_of))
        .where(window.c.pipeline == aggregate.pipeline, HAS_NEW_LOAD)
        .order_by(present.c.window_id.is_(None), window.c.starts_at)
    )
    return [
        NewLoad(window_id=number, start=start, attempt=attempt, count=count, is_new=is_new)
        for number, start, attempt, count, is_new in connection.execute(query)
    ]


def begin(engine: sa.Engine, name: str, run_id: str, now: datetime) -> int:
    """The number of a new aggregation. From here on no older one can write."""
    row_in = schema.aggregation
    with engine.begin() as connection:
        row_of(connection, name, lock=True)
        values = {"aggregate": name, "state": rows.ATTEMPT_RUNNING, "run_id": run_id, "began_at": now}
        number: int = connection.execute(sa.insert(row_in).values(values).returning(row_in.c.id)).scalar_one()
        older = (row_in.c.aggregate == name, row_in.c.state == rows.ATTEMPT_RUNNING, row_in.c.id < number)
        ended = {"state": rows.SUPERSEDED, "ended_at": now, "error": f"aggregation {number} of run {run_id} took over"}
        connection.execute(sa.update(row_in).where(*older).values(ended))
        connection.execute(sa.update(schema.aggregate).where(schema.aggregate.c.name == name).values(newest=number))
    return number


def bring_up_to_date(
    engine: sa.Engine, name: str, run_id: str, now: Callable[[], datetime], *, windows_max: int = STEP_WINDOWS_MAX
) -> Aggregated:
    """Takes in every new load, in as many steps as it needs. Raises `AttemptSuperseded` if another run has begun since."""
    number = begin(engine, name, run_id, now())
    steps: list[Aggregated] = []
    try:
        while not steps or not steps[-1].is_last:
            steps.append(take_step(engine, name, number, now, windows_max))
    except Exception as error:
        with suppress(SQLAlchemyError), engine.begin() as connection:
            is_running = (schema.aggregation.c.id == number, schema.aggregation.c.state == rows.ATTEMPT_RUNNING)
            ended = {"state": rows.FAILED, "ended_at": now(), "error": formatting.first_line(str(error))}
            connection.execute(sa.update(schema.aggregation).where(*is_running).values(ended))
        raise
    return Aggregated(
        aggregation=number,
        windows=sum(step.windows for step in steps),
        rows=sum(step.rows for step in steps),
        hours=sorted({hour for step in steps for hour in step.hours}),
        kept={hour: reason for step in steps for hour, reason in step.kept.items()},
    )


def take_step(
    engine: sa.Engine, name: str, number: int, now: Callable[[], datetime], windows_max: int = STEP_WINDOWS_MAX
) -> Aggregated:
    for _ in range(TRIES_MAX - 1):
        try:
            return step_once(engine, name, number, now(), windows_max)
        except OperationalError as error:
            if sql_errors.sqlstate_of(error) != sql_errors.SERIALIZATION_FAILURE:
                raise
    return step_once(engine, name, number, now(), windows_max)


def step_once(engine: sa.Engine, name: str, number: int, now: datetime, windows_max: int) -> Aggregated:
    with engine.connect() as connection:
        before = statements_of(connection, of_ledger(row_of(connection, name)))
    with engine.begin() as connection:
        begin_snapshot(connection, None if before is None else before.source)
        row = hold_if_newest(connection, name, number)
        statements = statements_of(connection, of_ledger(row))
        step = Aggregated(aggregation=number)
        if before is not None and statements is not None:
            ensure_table(connection, statements, row["columns"])
            step = AggregateStep(connection, statements, number).run(windows_max)
        write_outcome(connection, step, now)
    return step


def begin_snapshot(connection: sa.Connection, source: TableName | None) -> None:
    """From the next statement on the transaction sees the database as it is now, with all leaves of the pipeline's table."""
    connection.execute(SNAPSHOT)
    connection.execute(rows.HOLD_BRIEFLY)
    connection.execute(sa.text(f"set local lock_timeout = {LOCK_TIMEOUT_MS}"))
    if source is not None:
        connection.execute(sa.text(f"lock table only {source.sql} in access share mode"))


def hold_if_newest(connection: sa.Connection, name: str, number: int) -> Mapping[Any, Any]:
    """Locks the aggregate's row until the transaction ends; `AttemptSuperseded` unless the aggregation is its newest."""
    row = row_of(connection, name, lock=True)
    if row["newest"] != number:
        raise errors.AttemptSuperseded(f"aggregation {number} of {name} is superseded; the newest is {row['newest']}")
    return row


def ensure_table(connection: sa.Connection, statements: Statements, columns: Mapping[str, str] | None) -> None:
    """Makes the aggregate's table in its first run, and no other: a table of somebody else's is not written to."""
    aggregate, is_there = statements.aggregate, target.relation_exists(connection, statements.aggregate.target)
    if columns is not None:
        if not is_there:
            raise errors.WrongRequest(
                f"the table {aggregate.table} of aggregate {aggregate.name} is gone: `logbus aggregate drop {aggregate.name}` "
                "forgets it, and the next run makes it again"
            )
        return
    if is_there:
        raise errors.WrongRequest(
            f"there is a table {aggregate.table} already, which aggregate {aggregate.name} did not make: give it another name"
        )
    create_schema(connection, aggregate.target.schema)
    for statement in statements.create_table():
        connection.execute(statement)
    stored = {"columns": statements.stored_columns()}
    connection.execute(sa.update(schema.aggregate).where(schema.aggregate.c.name == aggregate.name).values(stored))


def write_outcome(connection: sa.Connection, step: Aggregated, now: datetime) -> None:
    row_in = schema.aggregation
    values: dict[str, Any] = {
        "window_count": row_in.c.window_count + step.windows,
        "hour_count": row_in.c.hour_count + len(step.hours),
        "row_count": row_in.c.row_count + step.rows,
    }
    if step.is_last:
        values |= {"state": rows.COMMITTED, "ended_at": now}
    connection.execute(sa.update(row_in).where(row_in.c.id == step.aggregation).values(values))


@dataclass(frozen=True, slots=True)
class AggregateStep:
    """The statements of one step, in the caller's transaction."""

    connection: sa.Connection
    statements: Statements
    number: int

    @property
    def aggregate(self) -> Aggregate:
        return self.statements.aggregate

    def run(self, windows_max: int) -> Aggregated:
        loads = new_loads(self.connection, self.aggregate)
        again, new = ([load for load in loads if load.is_new is is_new] for is_new in (False, True))
        taken, is_last = [*again, *new[:windows_max]], len(new) <= windows_max
        hours = self.hours_found_wrong().union(self.touch(taken) if taken else ())
        kept = self.hours_short_of_rows(hours, taken)
        computed = sorted(hours - kept.keys())
        row_count = self.write(computed)
        self.keep(kept)
        return Aggregated(aggregation=self.number, windows=len(taken), rows=row_count, hours=computed, kept=kept, is_last=is_last)

    def hours_found_wrong(self) -> set[datetime]:
        """By an audit: what the rows add up to wins."""
        hour = schema.aggregated_hour
        is_wrong = sa.func.jsonb_array_length(hour.c.audit_problems) > 0
        return set(self.connection.scalars(sa.select(hour.c.hour).where(hour.c.aggregate == self.aggregate.name, is_wrong)))

    def touch(self, loads: Sequence[NewLoad]) -> set[datetime]:
        """Replaces what the ledger knows of these windows; returns the hours that they touched before or touch now."""
        hour, window = schema.touched_hour, schema.aggregated_window
        is_theirs = (hour.c.aggregate == self.aggregate.name, rows.among(hour.c.window_id, [load.window_id for load in loads]))
        before = set(self.connection.scalars(sa.delete(hour).where(*is_theirs).returning(hour.c.hour)))
        counted = touched_hours(self.connection, self.statements, loads)
        values = [
            {
                "aggregate": self.aggregate.name,
                "window_id": load.window_id,
                "loaded_attempt": load.attempt,
                "loaded_count": load.count,
                "untimed_count": counted[load.start].get(None, 0),
                "missing_count": load.count - sum(counted[load.start].values()),
            }
            for load in loads
        ]
        upsert = insert(window)
        replaced = {name: upsert.excluded[name] for name in ("loaded_attempt", "loaded_count", "untimed_count", "missing_count")}
        self.connection.execute(upsert.on_conflict_do_update(index_elements=["aggregate", "window_id"], set_=replaced), values)
        touched: list[dict[str, Any]] = [
            {"aggregate": self.aggregate.name, "hour": at, "window_id": load.window_id, "row_count": count}
            for load in loads
            for at, count in counted[load.start].items()
            if at is not None
        ]
        if touched:
            self.connection.execute(sa.insert(hour), touched)
        return before | {row["hour"] for row in touched}

    def hours_short_of_rows(self, hours: Collection[datetime], taken: Sequence[NewLoad]) -> dict[datetime, str]:
        """Hours of which a window has not the rows any more that it had when it was taken in. Those of this step were counted."""
        hour, window = schema.touched_hour, schema.window
        query = (
            sa.select(window.c.starts_at, hour.c.hour, hour.c.row_count)
            .join(hour, hour.c.window_id == window.c.id)
            .where(hour.c.aggregate == self.aggregate.name, rows.among(hour.c.hour, hours))
            .where(sa.not_(rows.among(hour.c.window_id, [load.window_id for load in taken])))
        )
        expected = {(start, at): count for start, at, count in self.connection.execute(query)}
        if not expected:
            return {}
        parameters = self.statements.values({start for start, _ in expected}, hours)
        present = {
            (start, at): count for start, at, count in self.connection.execute(self.statements.touched_of_hours(), parameters)
        }
        return {
            at: f"window {model.instant_text(start)} has {present.get((start, at), 0):,} of {formatting.many(count, 'row')} of it"
            for (start, at), count in sorted(expected.items())
            if present.get((start, at), 0) != count
        }

    def keep(self, kept: Mapping[datetime, str]) -> None:
        hour = schema.aggregated_hour
        for at, reason in kept.items():
            is_it = (hour.c.aggregate == self.aggregate.name, hour.c.hour == at)
            self.connection.execute(sa.update(hour).where(*is_it).values(kept_because=reason, audit_problems=[]))

    def write(self, hours: Sequence[datetime]) -> int:
        """Deletes and inserts the rows of these hours, over all windows that touch them; returns how many rows they have now."""
        if not hours:
            return 0
        starts = starts_touching(self.connection, self.aggregate, hours)
        parameters = self.statements.values(starts, hours)
        self.connection.execute(self.statements.delete_hours(), parameters)
        inserted = self.connection.execute(self.statements.insert_hours(), parameters)
        counts: dict[datetime, int] = {hour: count for hour, count in inserted}  # noqa: C416 - a row is no tuple to mypy
        row_in = schema.aggregated_hour
        is_one_of = (row_in.c.aggregate == self.aggregate.name, rows.among(row_in.c.hour, hours))
        self.connection.execute(sa.delete(row_in).where(*is_one_of))
        # An hour without rows stays in the list: those who read it have to hear that it became empty.
        values = [
            {"aggregate": self.aggregate.name, "hour": at, "aggregation": self.number, "row_count": counts.get(at, 0)}
            for at in hours
        ]
        self.connection.execute(sa.insert(row_in), values)
        return sum(counts.values())


def touched_hours(
    connection: sa.Connection, statements: Statements, loads: Sequence[NewLoad], hours_max: int = TOUCHED_HOURS_MAX
) -> dict[datetime, dict[datetime | None, int]]:
    """By the start of a window how many of its rows fall into which event hour. `EquationMismatch` if a window has others than
    its load brought: then its hours would be wrong as well. One that has none at all was dropped before it was ever counted."""
    counted: dict[datetime, dict[datetime | None, int]] = {load.start: {} for load in loads}
    distinct: set[datetime | None] = set()
    parameters = {**statements.values(starts=counted), "most": hours_max + 1}
    for start, hour, count in connection.execute(statements.touched(), parameters):
        counted[start][hour] = count
        distinct.add(hour)
    if len(distinct) > hours_max:
        raise errors.WrongRequest(
            f"the rows of {formatting.many(len(loads), 'window')} fall into more than {hours_max:,} different hours: is "
            f"{statements.aggregate.event_time!r} the time at which something happened?"
        )
    for load in loads:
        present = sum(counted[load.start].values())
        if present != load.count and not (load.is_new and present == 0):
            start, name = model.instant_text(load.start), statements.aggregate.pipeline
            raise errors.EquationMismatch(
                f"the window of {name} at {start} has {formatting.many(present, 'row')}, and its load brought {load.count:,}: "
                f"`logbus window audit --pipeline {name} {start}` says more; load it again"
            )
    return counted


def starts_touching(connection: sa.Connection, aggregate: Aggregate, hours: Iterable[datetime]) -> list[datetime]:
    """The windows that have rows in these event hours, by their starts."""
    hour, window = schema.touched_hour, schema.window
    query = (
        sa.select(window.c.starts_at)
        .join(hour, hour.c.window_id == window.c.id)
        .where(hour.c.aggregate == aggregate.name, rows.among(hour.c.hour, list(hours)))
        .distinct()
        .order_by(window.c.starts_at)
    )
    return list(connection.scalars(query))
