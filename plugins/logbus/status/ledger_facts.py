"""What the ledger says of all pipelines at once: figures, by ten statements in one read-only transaction, so that they are
consistent (each scrape reads them); and for the pages the windows in a span and what was loaded when, one statement each, however
many; of one pipeline its newest windows and attempts.

It only reads and does not create a ledger. Totals (records by outcome, attempts) are counted from the ledger's rows, which are
never deleted, so they are true counters however often the exporter restarts; a rerun adds an attempt, and thus to the totals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Float,
    Integer,
    Join,
    Select,
    Subquery,
    Table,
    Text,
    and_,
    case,
    cast,
    extract,
    false,
    func,
    select,
    text,
)

from logbus.loads.completeness import newest_stamped
from logbus.loads.table_audit import VERDICTS
from logbus.model import EPOCH, Grid, Interval, WindowState, instant_text
from logbus.windows import rows, schema, sql_errors

WINDOW, RANGE, ATTEMPT = schema.window, schema.window_range, schema.attempt

OUTCOMES = ("loaded", "dead_lettered", "filtered")
ENDED = (rows.COMMITTED, rows.FAILED, rows.SUPERSEDED)

# A query over all pipelines, and the function that stores a row of it in one pipeline's facts.
Question = tuple[Callable[["PipelineFacts", Any], None], Callable[[], Select[Any]]]


@dataclass(slots=True, kw_only=True)
class PipelineFacts:
    """A pipeline's figures from the ledger; instants are None before the first event."""

    name: str
    topic: str
    windows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, WindowState), 0))
    windows_failed: int = 0
    windows_audit_failed: int = 0
    loaded_until: datetime | None = None
    loaded_at: datetime | None = None
    audited_at: datetime | None = None
    records: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    bytes: int = 0
    late: int = 0
    stamped: int = 0
    stamped_elsewhere: int = 0
    attempts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    attempts_running: int = 0
    dead_letters: int = 0
    redriven: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What the newest audits found in a table that others load: hours by verdict, records and rows. `foreign` are those of the
    whole table, `foreign_in_hours` those whose time is in one; None where the table has no times."""

    table: str
    topic: str
    audited_at: datetime
    foreign: int
    hours: Mapping[str, int]
    missing: int
    doubled: int
    foreign_in_hours: int | None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        counts = {"missing": self.missing, "doubled": self.doubled, "foreign": self.foreign}
        return {
            "table": self.table,
            "audited_at": instant_text(self.audited_at),
            **self.hours,
            **counts,
            "foreign_in_hours": self.foreign_in_hours,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    """All pipelines by name, audited tables of others, and the last run of managed retention."""

    pipelines: Mapping[str, PipelineFacts]
    tables: Sequence[TableFacts] = ()
    retention_ran_at: datetime | None = None
    retention_alarms: int = 0


@contextmanager
def one_moment(engine: Engine, *, timeout_seconds: float) -> Iterator[Connection]:
    """A connection that sees the ledger at one moment, and only reads. `LedgerMissing` if there is none, `WarehouseUnavailable`
    if the server does not answer."""
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with sql_errors.ledger_errors(), engine.connect().execution_options(**options) as connection:
        connection.execute(text(f"set local statement_timeout = {int(timeout_seconds * 1000)}"))
        yield connection


def read_ledger(engine: Engine, *, timeout_seconds: float) -> LedgerReading:
    """The ledger at one moment."""
    with one_moment(engine, timeout_seconds=timeout_seconds) as connection:
        return read_all(connection)


def read_windows(engine: Engine) -> Mapping[str, PipelineFacts]:
    """Only how many windows are in each state, and up to when they are loaded."""
    with engine.connect() as connection:
        return filled(connection, OF_WINDOWS)


def filled(connection: Connection, questions: Sequence[Question]) -> dict[str, PipelineFacts]:
    facts_by_name = {
        row.name: PipelineFacts(name=row.name, topic=row.topic)
        for row in connection.execute(select(schema.pipeline.c.name, schema.pipeline.c.topic).order_by(schema.pipeline.c.name))
    }
    for fill, query in questions:
        for row in connection.execute(query()):
            fill(facts_by_name[row.pipeline], row)
    return facts_by_name


def read_all(connection: Connection) -> LedgerReading:
    facts_by_name = filled(connection, QUESTIONS)
    run = schema.retention_run
    last = connection.execute(select(run.c.began_at, run.c.alarms).order_by(run.c.id.desc()).limit(1)).one_or_none()
    return LedgerReading(
        pipelines=facts_by_name,
        tables=read_tables(connection),
        retention_ran_at=last and last.began_at,
        retention_alarms=len(last.alarms or ()) if last else 0,
    )


def read_tables(connection: Connection) -> list[TableFacts]:
    table, hour = schema.audited_table.c, schema.audited_hour.c
    verdicts = [func.count().filter(hour.verdict == verdict).label(verdict) for verdict in VERDICTS]
    sums = [cast(func.sum(hour[f"{name}_count"]), BigInteger).label(name) for name in ("missing", "doubled", "foreign")]
    key = schema.audited_table.primary_key
    query = select(*table, *verdicts, *sums).outerjoin(schema.audited_hour).group_by(*key).order_by(*key)
    return [
        TableFacts(
            table=row.table_name,
            topic=row.topic,
            audited_at=row.audited_at,
            foreign=row.foreign_rows,
            hours={verdict: getattr(row, verdict) for verdict in VERDICTS},
            missing=row.missing or 0,
            doubled=row.doubled or 0,
            foreign_in_hours=row.foreign,
        )
        for row in connection.execute(query)
    ]


def _windows_by_state() -> Select[Any]:
    running = select(1).where(ATTEMPT.c.window_id == WINDOW.c.id, ATTEMPT.c.state == rows.ATTEMPT_RUNNING).exists()
    state = case(
        (WINDOW.c.audited_at.is_not(None), WindowState.AUDITED),
        (WINDOW.c.loaded_attempt.is_not(None), WindowState.LOADED),
        (running, WindowState.LOADING),
        else_=WindowState.FROZEN,
    )
    return select(WINDOW.c.pipeline, state.label("state"), func.count().label("number")).group_by(WINDOW.c.pipeline, state)


def _windows_in_all() -> Select[Any]:
    is_loaded = WINDOW.c.loaded_attempt.is_not(None)
    differs = cast(WINDOW.c.audit_problems, Text).not_in(rows.NO_PROBLEMS)
    return select(
        WINDOW.c.pipeline,
        func.count().filter(is_loaded, differs).label("audit_failed"),
        func.max(WINDOW.c.ends_at).filter(is_loaded).label("loaded_until"),
        func.max(WINDOW.c.loaded_at).label("loaded_at"),
        func.max(WINDOW.c.audited_at).label("audited_at"),
    ).group_by(WINDOW.c.pipeline)


def windows_failed() -> Select[Any]:
    last = (ATTEMPT.c.window_id == WINDOW.c.id) & (ATTEMPT.c.number == WINDOW.c.last_attempt)
    query = select(WINDOW.c.pipeline, func.count().label("number")).join(ATTEMPT, last)
    return query.where(WINDOW.c.loaded_attempt.is_(None), ATTEMPT.c.state == rows.FAILED).group_by(WINDOW.c.pipeline)


def _attempts_by_state() -> Select[Any]:
    sums = [func.coalesce(func.sum(ATTEMPT.c[f"{name}_count"]), 0).label(name) for name in (*OUTCOMES, "byte", "late")]
    query = select(WINDOW.c.pipeline, ATTEMPT.c.state, func.count().label("number"), *sums)
    return query.select_from(_with_window(ATTEMPT)).group_by(WINDOW.c.pipeline, ATTEMPT.c.state)


def dead_letters() -> Select[Any]:
    query = select(WINDOW.c.pipeline, func.count().label("number"))
    return query.select_from(_with_window(schema.dead_letter)).group_by(WINDOW.c.pipeline)


def redriven() -> Select[Any]:
    row_of = schema.redrive
    sums = [func.sum(row_of.c[f"{name}_count"]).label(name) for name in ("tried", "loaded", "dead_lettered")]
    return select(WINDOW.c.pipeline, *sums).select_from(_with_window(row_of)).group_by(WINDOW.c.pipeline)


def _with_window(of_window: Table) -> Join:
    """The table's rows joined with the window of each."""
    return of_window.join(WINDOW, WINDOW.c.id == of_window.c.window_id)


def _fill_state(facts: PipelineFacts, row: Any) -> None:
    facts.windows[row.state] = row.number


def _fill_windows(facts: PipelineFacts, row: Any) -> None:
    facts.windows_audit_failed, facts.loaded_until = row.audit_failed, row.loaded_until
    facts.loaded_at, facts.audited_at = row.loaded_at, row.audited_at


def _fill_failed(facts: PipelineFacts, row: Any) -> None:
    facts.windows_failed = row.number


def _fill_attempts(facts: PipelineFacts, row: Any) -> None:
    if row.state == rows.ATTEMPT_RUNNING:
        facts.attempts_running = row.number
        return
    facts.attempts[row.state] = row.number
    if row.state == rows.COMMITTED:
        facts.records = {name: int(getattr(row, name)) for name in OUTCOMES}
        facts.bytes, facts.late = int(row.byte), int(row.late)


def _fill_stamped(facts: PipelineFacts, row: Any) -> None:
    facts.stamped, facts.stamped_elsewhere = int(row.held), int(row.elsewhere)


def _fill_dead_letters(facts: PipelineFacts, row: Any) -> None:
    facts.dead_letters = row.number


def _fill_redriven(facts: PipelineFacts, row: Any) -> None:
    loaded, refused = int(row.loaded), int(row.dead_lettered)
    facts.redriven = {"loaded": loaded, "dead_lettered": refused, "filtered": int(row.tried) - loaded - refused}


OF_WINDOWS: Sequence[Question] = ((_fill_state, _windows_by_state), (_fill_windows, _windows_in_all))
QUESTIONS: Sequence[Question] = (
    *OF_WINDOWS,
    (_fill_failed, windows_failed),
    (_fill_attempts, _attempts_by_state),
    (_fill_dead_letters, dead_letters),
    (_fill_redriven, redriven),
    (_fill_stamped, newest_stamped),
)


# For the pages: the windows in a span and what was loaded when, one statement each, however many; of one pipeline its newest
# windows and attempts.


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
