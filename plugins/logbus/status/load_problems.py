"""What the ledger shows to be wrong with a pipeline's windows: attempts without a heartbeat, windows whose last attempt failed,
audits that found problems. Read by `logbus doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select

from logbus.windows import rows, schema

WINDOW, ATTEMPT = schema.window, schema.attempt


def silent_attempts(connection: Connection, pipeline_name: str, now: datetime) -> list[tuple[datetime, int, str, datetime]]:
    """Running attempts that have sent no heartbeat for too long: window, number, run and last heartbeat."""
    silent = (ATTEMPT.c.state == rows.ATTEMPT_RUNNING, ATTEMPT.c.heartbeat_at < now - rows.HEARTBEAT_EXPIRY)
    query = _of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.run_id, ATTEMPT.c.heartbeat_at).where(*silent)
    return [(start, number, run_id, heard) for start, number, run_id, heard in connection.execute(query)]


def failed_attempts(connection: Connection, pipeline_name: str) -> list[tuple[datetime, int, str | None]]:
    """The last attempts at windows that are not loaded, if they failed: window, number and error."""
    failed = (ATTEMPT.c.number == WINDOW.c.last_attempt, WINDOW.c.loaded_attempt.is_(None), ATTEMPT.c.state == rows.FAILED)
    query = _of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.error).where(*failed)
    return [(start, number, error) for start, number, error in connection.execute(query)]


def _of_windows(pipeline_name: str, *columns: Any) -> Select[Any]:
    """Columns of attempts, ordered by the start of their windows."""
    query = select(WINDOW.c.starts_at, *columns).join_from(ATTEMPT, WINDOW, ATTEMPT.c.window_id == WINDOW.c.id)
    return query.where(WINDOW.c.pipeline == pipeline_name).order_by(WINDOW.c.starts_at)


def audit_problems(connection: Connection, pipeline_name: str) -> Mapping[datetime, list[str]]:
    """The problems that the last audit of a window found, for the windows with any."""
    query = select(WINDOW.c.starts_at, WINDOW.c.audit_problems).where(WINDOW.c.pipeline == pipeline_name)
    return {start: problems for start, problems in connection.execute(query.order_by(WINDOW.c.starts_at)) if problems}
