"""Which windows were announced to which watcher: the memory of event triggers, so that an hour is announced once.

A watcher is a name, a pipeline and a stage: `closed` (the clock has passed the hour and its lateness), `loaded`, or `audited`.
When it is created, existing windows are stored as known, to avoid a year of events at once. From then on each window that
reaches the stage is announced, in order of time, and noted once Airflow has stored the event: after a crash in between it is
announced again rather than never. `take` closes that gap on the consumer's side: a window belongs to the first run that takes it.

A reload is not announced: the window has been, and holds the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import islice

from sqlalchemy import ColumnElement, Connection, Engine, func, literal, select
from sqlalchemy.dialects.postgresql import insert

from logbus import errors, model
from logbus.windows import schema
from logbus.windows.rows import among, pipeline_row, to_pipeline

ANNOUNCED_AT_ONCE_MAX = 100  # of a backlog, per poll


# On which PostgreSQL says that windows of a pipeline have changed, for whoever would otherwise ask again and again.
CHANNEL = "logbus_windows"
SUBJECT_CHARACTERS = 1_000  # a notification that is longer than 8,000 bytes is an error, and would fail the commit


def subject(pipeline_name: str) -> str:
    """What a notification says. Pipelines whose names begin alike for so long wake each other, which does no harm."""
    return pipeline_name[:SUBJECT_CHARACTERS]


def notify(connection: Connection, pipeline_name: str) -> None:
    """A window of the pipeline reaches a stage; said when the transaction commits."""
    connection.execute(select(func.pg_notify(CHANNEL, subject(pipeline_name))))


class Stage(StrEnum):
    """How far a window must have progressed to be announced."""

    CLOSED = "closed"
    LOADED = "loaded"
    AUDITED = "audited"


REACHED: dict[Stage, ColumnElement[bool]] = {
    Stage.LOADED: schema.window.c.loaded_attempt.is_not(None),
    Stage.AUDITED: schema.window.c.audited_at.is_not(None),
}


def begin_watch(engine: Engine, name: str, pipeline_name: str, stage: Stage, now: datetime) -> None:
    """Creates the watcher if it does not exist. Windows that have reached the stage by then count as announced."""
    row_of = schema.watcher
    values = {"name": name, "pipeline": pipeline_name, "stage": stage, "began_at": now}
    with engine.begin() as connection:
        created = connection.execute(insert(row_of).values(values).on_conflict_do_nothing().returning(row_of.c.name)).all()
        if created:
            put_down_as_known(connection, name, pipeline_name, stage, now)
        watcher = connection.execute(select(row_of).where(row_of.c.name == name)).mappings().one()
    if (watcher["pipeline"], watcher["stage"]) != (pipeline_name, stage):
        raise errors.UserError(
            f"the watcher {name!r} watches until {watcher['pipeline']} is {watcher['stage']}: choose another name for one that "
            f"watches until {pipeline_name} is {stage}"
        )


def put_down_as_known(connection: Connection, name: str, pipeline_name: str, stage: Stage, now: datetime) -> None:
    if stage in REACHED:
        window, row_of = schema.window, schema.announcement
        reached_already = select(literal(name), window.c.starts_at, literal(now)).where(
            window.c.pipeline == pipeline_name, REACHED[stage]
        )
        connection.execute(insert(row_of).from_select(["watcher", "starts_at", "announced_at"], reached_already))


def unannounced(engine: Engine, name: str, now: datetime, limit: int = ANNOUNCED_AT_ONCE_MAX) -> list[model.Interval]:
    """The next windows the watcher has not announced, in order of time."""
    with engine.connect() as connection:
        watcher = connection.execute(select(schema.watcher).where(schema.watcher.c.name == name)).mappings().one()
        stage = Stage(watcher["stage"])
        if stage in REACHED:
            return reached(connection, name, watcher["pipeline"], stage, limit)
        return list(islice(closed(connection, name, watcher["pipeline"], watcher["began_at"], now), limit))


def reached(connection: Connection, name: str, pipeline_name: str, stage: Stage, limit: int) -> list[model.Interval]:
    window, row_of = schema.window, schema.announcement
    announced = select(row_of.c.starts_at).where(row_of.c.watcher == name, row_of.c.starts_at == window.c.starts_at)
    query = select(window.c.starts_at, window.c.ends_at).where(
        window.c.pipeline == pipeline_name, REACHED[stage], ~announced.exists()
    )
    rows = connection.execute(query.order_by(window.c.starts_at).limit(limit))
    return [model.Interval(start, end) for start, end in rows]


def closed(connection: Connection, name: str, pipeline_name: str, began_at: datetime, now: datetime) -> Iterable[model.Interval]:
    """Intervals that have closed since the last announced one, or since the watch began. They close in order."""
    try:
        pipeline = to_pipeline(pipeline_row(connection, pipeline_name))
    except errors.PipelineUnknown:
        return []
    last = connection.execute(
        select(func.max(schema.announcement.c.starts_at)).where(schema.announcement.c.watcher == name)
    ).scalar_one()
    grid = pipeline.grid
    return grid.windows(grid.floor(began_at - pipeline.lateness) if last is None else grid.after(last), now - pipeline.lateness)


def note_announced(engine: Engine, name: str, starts: Sequence[datetime], now: datetime) -> None:
    """Called once Airflow has stored the events of these windows."""
    values = [{"watcher": name, "starts_at": start, "announced_at": now} for start in starts]
    with engine.begin() as connection:
        connection.execute(insert(schema.announcement).on_conflict_do_nothing(), values)


def told_since(engine: Engine, name: str, since: datetime, now: datetime) -> list[datetime]:
    """Windows whose announcement was noted at or after `since`, or is not noted yet."""
    row_of, watcher = schema.announcement, schema.watcher
    noted = select(row_of.c.starts_at).where(
        row_of.c.watcher == name,
        row_of.c.announced_at >= since,
        row_of.c.announced_at > select(watcher.c.began_at).where(watcher.c.name == name).scalar_subquery(),
    )
    with engine.connect() as connection:
        starts = set(connection.execute(noted).scalars())
    return sorted(starts.union(interval.start for interval in unannounced(engine, name, now)))


def take(
    engine: Engine, consumer: str, pipeline_name: str, starts: Sequence[datetime], run_id: str, now: datetime
) -> list[datetime]:
    """Those of the windows that belong to this run of the consumer: no other run has taken them before."""
    row_of = schema.taken_window
    common = {"consumer": consumer, "pipeline": pipeline_name, "run_id": run_id, "taken_at": now}
    taken_by_run = select(row_of.c.starts_at).where(
        row_of.c.consumer == consumer, row_of.c.pipeline == pipeline_name, row_of.c.run_id == run_id
    )
    with engine.begin() as connection:
        if starts:
            rows = [{**common, "starts_at": start} for start in sorted(set(starts))]
            connection.execute(insert(row_of).on_conflict_do_nothing(), rows)
        return sorted(set(connection.execute(taken_by_run.where(among(row_of.c.starts_at, starts))).scalars()))
