"""What the ledger knows of all pipelines at once: windows in a span, and what was loaded when. A statement each, however many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, Select, Subquery, and_, cast, extract, false, func, select

from logbus.windows import schema
from logbus.windows.cells import WindowFacts
from logbus.windows.model import Interval

WINDOW, RANGE, ATTEMPT = schema.window, schema.window_range, schema.attempt

# Loaded rows a second are told over this time: hourly loads put a whole hour's rows in at once.
LOADED_WITHIN = timedelta(hours=1)

SERIES_HOURS = 24  # of a sparkline
SERIES_STEP = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a pipeline has loaded so far: `read` records of `bytes` in keys and values, `lately` rows within `LOADED_WITHIN`."""

    read: int
    bytes: int
    lately: int

    @property
    def bytes_each(self) -> float | None:
        """Of a record, on average; nobody knows before the first load."""
        return self.bytes / self.read if self.read and self.bytes else None


def loaded_by_pipeline(connection: Connection, now: datetime) -> dict[str, Loaded]:
    """Of those that have loaded anything."""
    lately = func.sum(WINDOW.c.loaded_count).filter(WINDOW.c.loaded_at > now - LOADED_WITHIN)
    query = (
        select(WINDOW.c.pipeline, func.sum(WINDOW.c.read_count), func.sum(WINDOW.c.byte_count), func.coalesce(lately, 0))
        .where(WINDOW.c.loaded_attempt.is_not(None))
        .group_by(WINDOW.c.pipeline)
    )
    rows = connection.execute(query).all()
    return {name: Loaded(read=int(read or 0), bytes=int(size or 0), lately=int(last)) for name, read, size, last in rows}


def windows_in(
    connection: Connection, pipelines: Collection[str], span: Interval, run: tuple[str, str] | None = None
) -> dict[str, list[WindowFacts]]:
    """The pipelines' windows that overlap the span, by start. `run` (dag id, run id) marks those that it made attempts at."""
    found: dict[str, list[WindowFacts]] = {name: [] for name in pipelines}
    counts = range_counts(pipelines, span)
    columns = (
        *(WINDOW.c.pipeline, WINDOW.c.starts_at, WINDOW.c.ends_at, counts.c.records, counts.c.lost),
        *(WINDOW.c.loaded_attempt.is_not(None), WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        *(func.coalesce(WINDOW.c.loaded_count, 0), func.coalesce(WINDOW.c.dead_lettered_count, 0), WINDOW.c.last_attempt),
        *(ATTEMPT.c.state, ATTEMPT.c.error, WINDOW.c.audit_problems, of_run(run)),
    )
    last = and_(ATTEMPT.c.window_id == WINDOW.c.id, ATTEMPT.c.number == WINDOW.c.last_attempt)
    query = select(*columns).join(counts, counts.c.window_id == WINDOW.c.id).outerjoin(ATTEMPT, last)
    query = query.where(*inside(pipelines, span)).order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)
    intervals: dict[datetime, Interval] = {}  # thousands of windows, a few hundred hours
    for name, start, end, *rest in connection.execute(query).all():
        interval = intervals.get(start)
        if interval is None or interval.end != end:
            interval = intervals[start] = Interval(start, end)
        found[name].append(WindowFacts(name, interval, *rest))
    return found


def inside(pipelines: Collection[str], span: Interval) -> tuple[ColumnElement[bool], ...]:
    return (WINDOW.c.pipeline.in_(list(pipelines)), WINDOW.c.starts_at < span.end, WINDOW.c.ends_at > span.start)


def of_run(run: tuple[str, str] | None) -> ColumnElement[bool]:
    if run is None:
        return false()
    one, (dag_id, run_id) = schema.attempt.alias(), run
    query = select(one.c.number).where(one.c.window_id == WINDOW.c.id, one.c.dag_id == dag_id, one.c.run_id == run_id)
    return query.exists()


def range_counts(pipelines: Collection[str], span: Interval) -> Subquery:
    """By window how many records can be read and how many are declared lost. A window has a range of each partition."""
    lost = func.sum(RANGE.c.lost)
    records = func.sum(RANGE.c.end_offset - RANGE.c.start_offset) - lost
    return (
        select(RANGE.c.window_id, cast(records, BigInteger).label("records"), cast(lost, BigInteger).label("lost"))
        .join(WINDOW, WINDOW.c.id == RANGE.c.window_id)
        .where(*inside(pipelines, span))
        .group_by(RANGE.c.window_id)
        .subquery()
    )


def newest_end(connection: Connection, pipelines: Collection[str]) -> datetime | None:
    """Where the last window of these pipelines ends."""
    query = select(func.max(WINDOW.c.ends_at)).where(WINDOW.c.pipeline.in_(list(pipelines)))
    found: datetime | None = connection.execute(query).scalar_one()
    return found


def span_of_run(connection: Connection, dag_id: str, run_id: str) -> Interval | None:
    """From the first to the last window that a Dag run made attempts at; None where it made none."""
    query = (
        select(func.min(WINDOW.c.starts_at), func.max(WINDOW.c.ends_at))
        .join(ATTEMPT, ATTEMPT.c.window_id == WINDOW.c.id)
        .where(ATTEMPT.c.dag_id == dag_id, ATTEMPT.c.run_id == run_id)
    )
    start, end = connection.execute(query).one()
    return None if start is None else Interval(start, end)


# Where an hour begins, what its windows hold, what was loaded in it.
Step = tuple[datetime, int | None, int]


def series(connection: Connection, pipelines: Collection[str], span: Interval) -> dict[str, list[Step]]:
    """By pipeline, for each hour of the span's last day: the records of its windows (None where none is frozen, so nobody
    has counted them), and the rows that were loaded in it."""
    since = max(span.start, span.end - SERIES_HOURS * SERIES_STEP)
    mine = WINDOW.c.pipeline.in_(list(pipelines))
    size = func.sum(RANGE.c.end_offset - RANGE.c.start_offset)
    held = select(WINDOW.c.pipeline, step_of(WINDOW.c.starts_at), size).join(RANGE, RANGE.c.window_id == WINDOW.c.id)
    loaded = select(WINDOW.c.pipeline, step_of(WINDOW.c.loaded_at), func.sum(WINDOW.c.loaded_count))
    held_by = counts_of(connection, held.where(mine, WINDOW.c.starts_at >= since, WINDOW.c.starts_at < span.end))
    loaded_by = counts_of(connection, loaded.where(mine, WINDOW.c.loaded_at >= since, WINDOW.c.loaded_at < span.end))
    first, last = step_number(since), step_number(span.end)
    return {
        name: [(step_start(at), held_by.get((name, at)), loaded_by.get((name, at), 0)) for at in range(first, last)]
        for name in pipelines
    }


def counts_of(connection: Connection, query: Select[Any]) -> dict[tuple[str, int], int]:
    """Sums by pipeline and step."""
    return {(name, step): int(count or 0) for name, step, count in connection.execute(query.group_by(WINDOW.c.pipeline, STEP))}


STEP = "step"


def step_of(instant: ColumnElement[datetime]) -> ColumnElement[int]:
    """The number of the step since the epoch."""
    return cast(func.floor(extract("epoch", instant) / int(SERIES_STEP.total_seconds())), Integer).label(STEP)


def step_number(instant: datetime) -> int:
    return int(instant.timestamp() // SERIES_STEP.total_seconds())


def step_start(number: int) -> datetime:
    return datetime.fromtimestamp(number * SERIES_STEP.total_seconds(), UTC)
