"""When a run may reuse another run's load: a backfill of many hours should not start a Spark application for each of them.

A run asks for a load at some instant: when it was queued, cleared or retried. A loaded attempt that began after that instant,
whichever run made it, is what the run asked for, provided that it was loaded with the same definition of the pipeline. One
that began before is not: a clear means "load it again".

A window that failed twice in a row is loaded alone, so that it cannot fail others with it; one failure is often the machine's
fault. A window that another run is loading is left to that run: beginning an attempt at it would supersede the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select

from logbus.errors import WindowBusy
from logbus.ledger import schema
from logbus.ledger.attempts import FAILED, is_alive
from logbus.ledger.definition import Definition
from logbus.ledger.heartbeats import HEARTBEAT_EXPIRY
from logbus.model import instant_text
from logbus.wording import several

FAILURES_BEFORE_ALONE = 2
NAMED_MAX = 5  # attempts named in an error
SILENCE_MINUTES = HEARTBEAT_EXPIRY // timedelta(minutes=1)


def begun_since(
    engine: Engine, pipeline_name: str, starts: Sequence[datetime], asked_at: datetime, definition: Definition | None = None
) -> set[datetime]:
    """Those of the windows whose loaded attempt began after `asked_at`; with a definition, only those loaded with it."""
    window, attempt = schema.window, schema.attempt
    query = loaded_starts(pipeline_name).where(schema.among(window.c.starts_at, starts), attempt.c.began_at > asked_at)
    if definition is not None:
        query = query.where(attempt.c.definition == definition)
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def unaudited_of_run(engine: Engine, pipeline_name: str, dag_id: str, run_id: str) -> set[datetime]:
    """Windows that attempts of a DAG run have loaded and that are not audited."""
    attempt = schema.attempt
    by_run = (attempt.c.dag_id == dag_id, attempt.c.run_id == run_id)
    query = loaded_starts(pipeline_name).where(schema.window.c.audited_at.is_(None), *by_run)
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def loaded_starts(pipeline_name: str) -> Select[Any]:
    """The starts of loaded windows, joined with the attempt that is loaded."""
    window, attempt = schema.window, schema.attempt
    loaded_by = (attempt.c.window_id == window.c.id) & (attempt.c.number == window.c.loaded_attempt)
    return select(window.c.starts_at).join(attempt, loaded_by).where(window.c.pipeline == pipeline_name)


def failing(engine: Engine, pipeline_name: str, starts: Sequence[datetime]) -> set[datetime]:
    """Those of the windows whose last `FAILURES_BEFORE_ALONE` attempts all failed."""
    window, attempt = schema.window, schema.attempt
    failures = (
        select(func.count())
        .where(attempt.c.window_id == window.c.id, attempt.c.number > window.c.last_attempt - FAILURES_BEFORE_ALONE)
        .where(attempt.c.state == FAILED)
        .scalar_subquery()
    )
    query = select(window.c.starts_at).where(
        window.c.pipeline == pipeline_name, schema.among(window.c.starts_at, starts), failures == FAILURES_BEFORE_ALONE
    )
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def at_work_elsewhere(
    engine: Engine, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
) -> dict[datetime, str]:
    """Those of the windows on which an attempt of another run is alive, with a text that names it; attempts of earlier tries of
    `run_id` do not count. None: every run is another one."""
    with engine.connect() as connection:
        return at_work(connection, pipeline_name, starts, run_id, now)


def at_work(
    connection: Connection, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
) -> dict[datetime, str]:
    window, attempt = schema.window, schema.attempt
    query = (
        select(window.c.starts_at, attempt.c.number, attempt.c.run_id, attempt.c.heartbeat_at)
        .join(attempt, attempt.c.window_id == window.c.id)
        .where(window.c.pipeline == pipeline_name, is_alive(now))
    )
    if run_id is not None:
        query = query.where(attempt.c.run_id != run_id)
    wanted = set(starts)  # a whole pipeline may have more windows than a statement has parameters; few are being loaded
    rows = [row for row in connection.execute(query) if row.starts_at in wanted]
    return {row.starts_at: attempt_text(row, (now - row.heartbeat_at).total_seconds()) for row in rows}


def attempt_text(row: Any, silent_seconds: float) -> str:
    return f"attempt {row.number} at {instant_text(row.starts_at)} by run {row.run_id}, last heartbeat {silent_seconds:.0f} s ago"


def refuse_busy(workers: Sequence[str]) -> None:
    """`WindowBusy` with the attempts (texts of `at_work_elsewhere`) that a load would take its windows away from."""
    if workers:
        named = several(workers, NAMED_MAX, separator="; ")
        raise WindowBusy(
            f"another run is working on {len(workers):,} of these windows: {named}. Wait, or take over "
            "(--supersede, supersede=True): its attempts cannot commit then. Attempts without a heartbeat for "
            f"{SILENCE_MINUTES} minutes are presumed dead"
        )
