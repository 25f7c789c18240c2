"""Figures on all pipelines: ten statements in one read-only transaction, so that they are consistent. Used by each scrape.

It only reads and does not create a ledger. Totals (records by outcome, attempts) are counted from the ledger's rows, which are
never deleted, so they are true counters however often the exporter restarts; a rerun adds an attempt, and thus to the totals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Engine, Join, Select, Table, Text, case, cast, func, select, text

from logbus.loads.stamped_hours import newest_stamped
from logbus.loads.table_audit import VERDICTS
from logbus.model import WindowState, instant_text
from logbus.windows import rows, schema, sql_errors

WINDOW, ATTEMPT = schema.window, schema.attempt

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
