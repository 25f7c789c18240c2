"""What the ledger shows to be wrong with a pipeline's windows: attempts without a heartbeat, windows whose last attempt failed,
audits that found problems or are still to come. Read by `logbus doctor`; a load makes the audits that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, Text, cast, or_, select

from logbus.ledger import schema
from logbus.ledger.attempts import FAILED
from logbus.ledger.heartbeats import HEARTBEAT_EXPIRY
from logbus.ledger.rows import ATTEMPT_RUNNING
from logbus.model import Interval

WINDOW, ATTEMPT = schema.window, schema.attempt
NO_PROBLEMS = ("[]", "null")  # an audit's problems in JSON, as text


def silent_attempts(connection: Connection, pipeline_name: str, now: datetime) -> list[tuple[datetime, int, str, datetime]]:
    """Running attempts that have sent no heartbeat for too long: window, number, run and last heartbeat."""
    silent = (ATTEMPT.c.state == ATTEMPT_RUNNING, ATTEMPT.c.heartbeat_at < now - HEARTBEAT_EXPIRY)
    query = of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.run_id, ATTEMPT.c.heartbeat_at).where(*silent)
    return [(start, number, run_id, heard) for start, number, run_id, heard in connection.execute(query)]


def failed_attempts(connection: Connection, pipeline_name: str) -> list[tuple[datetime, int, str | None]]:
    """The last attempts at windows that are not loaded, if they failed: window, number and error."""
    failed = (ATTEMPT.c.number == WINDOW.c.last_attempt, WINDOW.c.loaded_attempt.is_(None), ATTEMPT.c.state == FAILED)
    query = of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.error).where(*failed)
    return [(start, number, error) for start, number, error in connection.execute(query)]


def of_windows(pipeline_name: str, *columns: Any) -> Select[Any]:
    """Columns of attempts, ordered by the start of their windows."""
    query = select(WINDOW.c.starts_at, *columns).join_from(ATTEMPT, WINDOW, ATTEMPT.c.window_id == WINDOW.c.id)
    return query.where(WINDOW.c.pipeline == pipeline_name).order_by(WINDOW.c.starts_at)


def audit_problems(connection: Connection, pipeline_name: str) -> Mapping[datetime, list[str]]:
    """The problems that the last audit of a window found, for the windows with any."""
    query = select(WINDOW.c.starts_at, WINDOW.c.audit_problems).where(WINDOW.c.pipeline == pipeline_name)
    return {start: found for start, found in connection.execute(query.order_by(WINDOW.c.starts_at)) if found}


def unaudited(connection: Connection, pipeline_name: str) -> list[Interval]:
    """The windows that are loaded, and that no audit has looked at since."""
    loaded = (WINDOW.c.pipeline == pipeline_name, WINDOW.c.loaded_attempt.is_not(None), WINDOW.c.audited_at.is_(None))
    nothing_found = or_(WINDOW.c.audit_problems.is_(None), cast(WINDOW.c.audit_problems, Text).in_(NO_PROBLEMS))
    query = select(WINDOW.c.starts_at, WINDOW.c.ends_at).where(*loaded, nothing_found).order_by(WINDOW.c.starts_at)
    return [Interval(start, end) for start, end in connection.execute(query)]
