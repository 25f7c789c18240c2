"""What the ledger knows of all pipelines at once: windows in a span, and what was loaded when. A statement each, however many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, Subquery, and_, cast, extract, false, func, select

from logbus.ledger import schema
from logbus.model import EPOCH, Interval
from logbus.status.cells import HOURS_REMEMBERED, WindowFacts

WINDOW, RANGE, ATTEMPT = schema.window, schema.window_range, schema.attempt

# Loaded rows a second are told over this time: hourly loads put a whole hour's rows in at once.
LOADED_WITHIN = timedelta(hours=1)

# Windows of which what is known of them is remembered: a week of 180 pipelines, some 30 MB. Most stay as they are for ever.
FACTS_REMEMBERED = 30_000

# Few enough that they are gone before the garbage collector looks for them, which takes long in a process like the api-server.
ROWS_AT_ONCE = 200

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


def windows_in(connection: Connection, span: Interval, run: tuple[str, str] | None = None) -> dict[str, list[WindowFacts]]:
    """Every pipeline's windows that overlap the span, by start. `run` (dag id, run id) marks those that it made attempts at."""
    found: dict[str, list[WindowFacts]] = {}
    counts = range_counts(span)
    columns = (
        *(WINDOW.c.pipeline, microseconds(WINDOW.c.starts_at), microseconds(WINDOW.c.ends_at), counts.c.records, counts.c.lost),
        *(WINDOW.c.loaded_attempt.is_not(None), WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        *(func.coalesce(WINDOW.c.loaded_count, 0), func.coalesce(WINDOW.c.dead_lettered_count, 0), WINDOW.c.last_attempt),
        *(ATTEMPT.c.state, ATTEMPT.c.error, WINDOW.c.audit_problems[0].astext, of_run(run)),
    )
    last = and_(ATTEMPT.c.window_id == WINDOW.c.id, ATTEMPT.c.number == WINDOW.c.last_attempt)
    query = select(*columns).join(counts, counts.c.window_id == WINDOW.c.id).outerjoin(ATTEMPT, last)
    query = query.where(*inside(span)).order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)
    for some in connection.execute(query).partitions(ROWS_AT_ONCE):
        for name, *values in some:
            found.setdefault(name, []).append(facts_of(*values))
    return found


@lru_cache(maxsize=FACTS_REMEMBERED)
def facts_of(start: int, end: int, *values: Any) -> WindowFacts:
    """A row's facts; `start` and `end` in microseconds since the epoch, which are read and compared faster than instants."""
    return WindowFacts(interval_of(start, end), *values)


@lru_cache(maxsize=HOURS_REMEMBERED)
def interval_of(start: int, end: int) -> Interval:
    """All pipelines have the same hours."""
    return Interval(*(EPOCH + timedelta(microseconds=at) for at in (start, end)))


def microseconds(instant: ColumnElement[datetime]) -> ColumnElement[int]:
    return cast(extract("epoch", instant) * 1_000_000, BigInteger)


def inside(span: Interval) -> tuple[ColumnElement[bool], ...]:
    return (WINDOW.c.starts_at < span.end, WINDOW.c.ends_at > span.start)


def of_run(run: tuple[str, str] | None) -> ColumnElement[bool]:
    if run is None:
        return false()
    one, (dag_id, run_id) = schema.attempt.alias(), run
    query = select(one.c.number).where(one.c.window_id == WINDOW.c.id, one.c.dag_id == dag_id, one.c.run_id == run_id)
    return query.exists()


def range_counts(span: Interval) -> Subquery:
    """By window how many records can be read and how many are declared lost. A window has a range of each partition."""
    lost = func.sum(RANGE.c.lost)
    records = func.sum(RANGE.c.end_offset - RANGE.c.start_offset) - lost
    return (
        select(RANGE.c.window_id, cast(records, BigInteger).label("records"), cast(lost, BigInteger).label("lost"))
        .join(WINDOW, WINDOW.c.id == RANGE.c.window_id)
        .where(*inside(span))
        .group_by(RANGE.c.window_id)
        .subquery()
    )


def newest_ends(connection: Connection) -> dict[str, datetime]:
    """By pipeline where its last window ends."""
    query = select(WINDOW.c.pipeline, func.max(WINDOW.c.ends_at)).group_by(WINDOW.c.pipeline)
    return dict(connection.execute(query).all())


def span_of_run(connection: Connection, dag_id: str, run_id: str) -> Interval | None:
    """From the first to the last window that a Dag run made attempts at; None where it made none."""
    query = (
        select(func.min(WINDOW.c.starts_at), func.max(WINDOW.c.ends_at))
        .join(ATTEMPT, ATTEMPT.c.window_id == WINDOW.c.id)
        .where(ATTEMPT.c.dag_id == dag_id, ATTEMPT.c.run_id == run_id)
    )
    start, end = connection.execute(query).one()
    return None if start is None else Interval(start, end)


def loaded_in_steps(connection: Connection, span: Interval) -> dict[tuple[str, int], int]:
    """By pipeline and step (its number since the epoch) the rows that were loaded in the span's last day."""
    step = cast(func.floor(extract("epoch", WINDOW.c.loaded_at) / int(SERIES_STEP.total_seconds())), Integer).label("step")
    query = select(WINDOW.c.pipeline, step, func.sum(WINDOW.c.loaded_count))
    query = query.where(WINDOW.c.loaded_at >= series_begin(span), WINDOW.c.loaded_at < span.end)
    rows = connection.execute(query.group_by(WINDOW.c.pipeline, step)).all()
    return {(name, at): int(count or 0) for name, at, count in rows}


# Where an hour begins, what its windows hold, what was loaded in it.
Step = tuple[datetime, int | None, int]


def series(pipeline: str, windows: Sequence[WindowFacts], loaded: Mapping[tuple[str, int], int], span: Interval) -> list[Step]:
    """For each hour of the span's last day: the records of its windows (None where none is frozen, so nobody has counted them),
    and the rows that were loaded in it. `windows` are those of the pipeline in the span, by start."""
    since, held = series_begin(span), dict[int, int]()
    for window in reversed(windows):
        if window.interval.start < since:
            break
        if window.interval.start < span.end:
            step = step_number(window.interval.start)
            held[step] = held.get(step, 0) + window.records + window.lost
    steps = range(step_number(since), step_number(span.end))
    return [(step_start(at), held.get(at), loaded.get((pipeline, at), 0)) for at in steps]


def series_begin(span: Interval) -> datetime:
    return max(span.start, span.end - SERIES_HOURS * SERIES_STEP)


def step_number(instant: datetime) -> int:
    return int(instant.timestamp() // SERIES_STEP.total_seconds())


def step_start(number: int) -> datetime:
    return datetime.fromtimestamp(number * SERIES_STEP.total_seconds(), UTC)
