"""The ledger's facts for the pages: on all pipelines at once the windows in a span and what was loaded when, one statement each,
however many; on one pipeline its newest windows and attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Connection, Float, Integer, Subquery, and_, cast, extract, false, func, select

from logbus.model import EPOCH, Grid, Interval, instant_text
from logbus.windows import schema

WINDOW, RANGE, ATTEMPT = schema.window, schema.window_range, schema.attempt

# Loaded rows per second are averaged over this time: hourly loads insert a whole hour's rows at once.
LOADED_WITHIN = timedelta(hours=1)

# Few enough to be freed before they trigger the garbage collector, which is slow in a process like the api-server.
ROWS_AT_ONCE = 200

MICROSECOND = timedelta(microseconds=1)

SERIES_HOURS = 24  # of a sparkline
SERIES_STEP = timedelta(hours=1)


class WindowFacts(NamedTuple):
    """A frozen window as the ledger has it, with its last attempt. `records` can be read, `lost` are gone and declared lost.

    Thousands are read for each view of the page: so its fields are those of a row in the same order, and `start` and `end` are
    microseconds since the epoch, which need no conversion.
    """

    start: int
    end: int
    records: int
    lost: int
    is_loaded: bool = False
    is_audited: bool = False
    head_unknown: bool = False
    loaded: int = 0
    dead_lettered: int = 0
    attempts: int = 0
    last_state: str | None = None
    last_error: str | None = None
    audit_problem: str | None = None
    of_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a pipeline has loaded so far: `read` records of `bytes` in keys and values, `lately` rows within `LOADED_WITHIN`."""

    read: int
    bytes: int
    lately: int

    @property
    def bytes_each(self) -> float | None:
        """Per record, on average; unknown before the first load."""
        return self.bytes / self.read if self.read and self.bytes else None


def loaded_by_pipeline(connection: Connection, now: datetime) -> dict[str, Loaded]:
    """For the pipelines that have loaded anything."""
    lately = func.sum(WINDOW.c.loaded_count).filter(WINDOW.c.loaded_at > now - LOADED_WITHIN)
    query = (
        select(WINDOW.c.pipeline, func.sum(WINDOW.c.read_count), func.sum(WINDOW.c.byte_count), func.coalesce(lately, 0))
        .where(WINDOW.c.loaded_attempt.is_not(None))
        .group_by(WINDOW.c.pipeline)
    )
    rows = connection.execute(query).all()
    return {name: Loaded(read=int(read or 0), bytes=int(size or 0), lately=int(last)) for name, read, size, last in rows}


def windows_in(connection: Connection, span: Interval, run: tuple[str, str] | None = None) -> dict[str, list[WindowFacts]]:
    """Every pipeline's windows that overlap the span, by start. Those that `run` (dag id, run id) attempted are marked."""
    facts_by_pipeline: dict[str, list[WindowFacts]] = {}
    counts = _range_counts(span)
    columns = (
        *(WINDOW.c.pipeline, microseconds(WINDOW.c.starts_at), microseconds(WINDOW.c.ends_at), counts.c.records, counts.c.lost),
        *(WINDOW.c.loaded_attempt.is_not(None), WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        *(func.coalesce(WINDOW.c.loaded_count, 0), func.coalesce(WINDOW.c.dead_lettered_count, 0), WINDOW.c.last_attempt),
        *(ATTEMPT.c.state, ATTEMPT.c.error, WINDOW.c.audit_problems[0].astext, of_run(run)),
    )
    last = and_(ATTEMPT.c.window_id == WINDOW.c.id, ATTEMPT.c.number == WINDOW.c.last_attempt)
    query = select(*columns).join(counts, counts.c.window_id == WINDOW.c.id).outerjoin(ATTEMPT, last)
    query = query.where(*inside(span)).order_by(WINDOW.c.starts_at)  # ordering by name too is not needed and costs ten times that
    for batch in connection.execute(query).partitions(ROWS_AT_ONCE):
        for name, *values in batch:
            facts_by_pipeline.setdefault(name, []).append(WindowFacts._make(values))
    return facts_by_pipeline


def micros(instant: datetime) -> int:
    """Since the epoch."""
    return (instant - EPOCH) // MICROSECOND


def microseconds(instant: ColumnElement[datetime]) -> ColumnElement[int]:
    return cast(extract("epoch", instant) * 1_000_000, BigInteger)


def inside(span: Interval) -> tuple[ColumnElement[bool], ...]:
    return (WINDOW.c.starts_at < span.end, WINDOW.c.ends_at > span.start)


def of_run(run: tuple[str, str] | None) -> ColumnElement[bool]:
    if run is None:
        return false()
    attempt, (dag_id, run_id) = schema.attempt.alias(), run
    query = select(attempt.c.number).where(
        attempt.c.window_id == WINDOW.c.id, attempt.c.dag_id == dag_id, attempt.c.run_id == run_id
    )
    return query.exists()


def _range_counts(span: Interval) -> Subquery:
    """By window, how many records can be read and how many are declared lost. A window has one range per partition."""
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
    """By pipeline, the end of the last window that may hold a record: loaded windows without any are of no interest."""
    holds = func.coalesce(WINDOW.c.read_count, 1) > 0
    query = select(WINDOW.c.pipeline, func.max(WINDOW.c.ends_at)).where(holds).group_by(WINDOW.c.pipeline)
    return dict(connection.execute(query).all())


def span_of_run(connection: Connection, dag_id: str, run_id: str) -> Interval | None:
    """From the first to the last window that a DAG run attempted; None if it attempted none."""
    query = (
        select(func.min(WINDOW.c.starts_at), func.max(WINDOW.c.ends_at))
        .join(ATTEMPT, ATTEMPT.c.window_id == WINDOW.c.id)
        .where(ATTEMPT.c.dag_id == dag_id, ATTEMPT.c.run_id == run_id)
    )
    start, end = connection.execute(query).one()
    return None if start is None else Interval(start, end)


def loaded_in_steps(connection: Connection, span: Interval) -> dict[tuple[str, int], int]:
    """By pipeline and step (its number since the epoch), the rows that were loaded in the span's last day."""
    step = cast(func.floor(extract("epoch", WINDOW.c.loaded_at) / int(SERIES_STEP.total_seconds())), Integer).label("step")
    query = select(WINDOW.c.pipeline, step, func.sum(WINDOW.c.loaded_count))
    query = query.where(WINDOW.c.loaded_at >= _series_begin(span), WINDOW.c.loaded_at < span.end)
    rows = connection.execute(query.group_by(WINDOW.c.pipeline, step)).all()
    return {(name, at): int(count or 0) for name, at, count in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """By hour: records of its windows (None if none is frozen), and rows loaded during it."""

    produced: Sequence[int | None]
    loaded: Sequence[int]


def series(pipeline: str, windows: Sequence[WindowFacts], loaded: Mapping[tuple[str, int], int], span: Interval) -> Series:
    """The span's last day, from `series_start` on. `windows` are those of the pipeline in the span, by start."""
    steps = range(_step_number(_series_begin(span)), _step_number(span.end))
    since, until, step = micros(_series_begin(span)), micros(span.end), SERIES_STEP // MICROSECOND
    records_by_step: dict[int, int] = {}
    for window in reversed(windows):
        if window.start < since:
            break
        if window.start < until:
            number = window.start // step
            records_by_step[number] = records_by_step.get(number, 0) + window.records + window.lost
    return Series(
        produced=[records_by_step.get(number) for number in steps],
        loaded=[loaded.get((pipeline, number), 0) for number in steps],
    )


def series_start(span: Interval) -> datetime:
    """Where the first hour of a series begins."""
    return Grid(SERIES_STEP).floor(_series_begin(span))


def _series_begin(span: Interval) -> datetime:
    return max(span.start, span.end - SERIES_HOURS * SERIES_STEP)


def _step_number(instant: datetime) -> int:
    return (instant - EPOCH) // SERIES_STEP


def loaded_hours(connection: Connection, pipeline_name: str, count: int) -> list[Any]:
    """The newest `count` loaded windows of a pipeline, by time; `seconds` is how long the attempt took that loaded each, with the
    start of Spark."""
    took = cast(func.extract("epoch", ATTEMPT.c.ended_at - ATTEMPT.c.began_at), Float).label("seconds")
    counts = [WINDOW.c[f"{name}_count"].label(name) for name in ("read", "dead_lettered", "late")]
    loaded_by = (ATTEMPT.c.window_id == WINDOW.c.id) & (ATTEMPT.c.number == WINDOW.c.loaded_attempt)
    query = (
        select(WINDOW.c.starts_at.label("start"), *counts, took)
        .outerjoin_from(WINDOW, ATTEMPT, loaded_by)
        .where(WINDOW.c.pipeline == pipeline_name, WINDOW.c.loaded_attempt.is_not(None))
        .order_by(WINDOW.c.starts_at.desc())
        .limit(count)
    )
    return list(connection.execute(query))[::-1]


def recent_attempts(connection: Connection, pipeline_name: str, count: int) -> list[dict[str, Any]]:
    """The newest `count` attempts by any run, as JSON-ready values, newest first."""
    names = (
        "start",
        "number",
        "state",
        "began_at",
        "ended_at",
        "error",
        "run_id",
        "try_number",
        "dag_id",
        "task_id",
        "map_index",
    )
    query = (
        select(WINDOW.c.starts_at, *(ATTEMPT.c[name] for name in names[1:]))
        .join_from(ATTEMPT, WINDOW, ATTEMPT.c.window_id == WINDOW.c.id)
        .where(WINDOW.c.pipeline == pipeline_name)
        .order_by(ATTEMPT.c.began_at.desc(), WINDOW.c.starts_at.desc())
        .limit(count)
    )
    return [
        {name: instant_text(value) if isinstance(value, datetime) else value for name, value in zip(names, row, strict=True)}
        for row in connection.execute(query)
    ]


def dead_letter_classes(connection: Connection, pipeline_name: str, since: datetime) -> list[dict[str, Any]]:
    """For windows that begin at or after `since`: how many of each class, in how many windows, and the last of these."""
    dead, count = schema.dead_letter, func.count()
    query = (
        select(dead.c.error_class, count, func.count(WINDOW.c.id.distinct()), func.max(WINDOW.c.starts_at))
        .join_from(dead, WINDOW, dead.c.window_id == WINDOW.c.id)
        .where(WINDOW.c.pipeline == pipeline_name, WINDOW.c.starts_at >= since)
        .group_by(dead.c.error_class)
        .order_by(count.desc(), dead.c.error_class)
    )
    return [
        {"error_class": name, "count": number, "windows": windows, "last": instant_text(last)}
        for name, number, windows, last in connection.execute(query)
    ]
