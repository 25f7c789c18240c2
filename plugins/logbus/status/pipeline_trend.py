"""One pipeline's recent history: its newest windows with what was read and how long that took, and its newest attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from logbus.model import instant_text
from logbus.windows import schema

WINDOW, ATTEMPT, DEAD = schema.window, schema.attempt, schema.dead_letter


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHour:
    """A loaded window; `seconds` is the duration of the attempt that loaded it, including the start of Spark."""

    start: datetime
    read: int
    dead_lettered: int
    late: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentAttempt:
    """One try at loading a window, by any run."""

    start: datetime
    number: int
    state: str
    began_at: datetime
    ended_at: datetime | None
    error: str | None
    run_id: str
    try_number: int
    dag_id: str | None
    task_id: str | None
    map_index: int | None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("number", "state", "error", "run_id", "try_number", "dag_id", "task_id", "map_index")
        return {
            **{name: getattr(self, name) for name in same},
            "start": instant_text(self.start),
            "began_at": instant_text(self.began_at),
            "ended_at": self.ended_at and instant_text(self.ended_at),
        }


def loaded_hours(connection: Connection, pipeline_name: str, count: int) -> list[LoadedHour]:
    """The newest `count` loaded windows, by time."""
    took = func.extract("epoch", ATTEMPT.c.ended_at - ATTEMPT.c.began_at)
    loaded_by = (ATTEMPT.c.window_id == WINDOW.c.id) & (ATTEMPT.c.number == WINDOW.c.loaded_attempt)
    query = (
        select(WINDOW.c.starts_at, WINDOW.c.read_count, WINDOW.c.dead_lettered_count, WINDOW.c.late_count, took.label("seconds"))
        .outerjoin_from(WINDOW, ATTEMPT, loaded_by)
        .where(WINDOW.c.pipeline == pipeline_name, WINDOW.c.loaded_attempt.is_not(None))
        .order_by(WINDOW.c.starts_at.desc())
        .limit(count)
    )
    newest = [
        LoadedHour(start=start, read=read, dead_lettered=dead, late=late, seconds=None if seconds is None else float(seconds))
        for start, read, dead, late, seconds in connection.execute(query)
    ]
    return newest[::-1]


def recent_attempts(connection: Connection, pipeline_name: str, count: int) -> list[RecentAttempt]:
    """The newest `count` attempts, newest first."""
    same = ("number", "state", "began_at", "ended_at", "error", "run_id", "try_number", "dag_id", "task_id", "map_index")
    query = (
        select(WINDOW.c.starts_at.label("start"), *(ATTEMPT.c[name] for name in same))
        .join_from(ATTEMPT, WINDOW, ATTEMPT.c.window_id == WINDOW.c.id)
        .where(WINDOW.c.pipeline == pipeline_name)
        .order_by(ATTEMPT.c.began_at.desc(), WINDOW.c.starts_at.desc())
        .limit(count)
    )
    return [RecentAttempt(**row) for row in connection.execute(query).mappings()]


def dead_letter_classes(connection: Connection, pipeline_name: str, since: datetime) -> list[dict[str, Any]]:
    """For windows that begin at or after `since`: how many of each class, in how many windows, and the last of these."""
    count = func.count()
    query = (
        select(DEAD.c.error_class, count, func.count(WINDOW.c.id.distinct()), func.max(WINDOW.c.starts_at))
        .join_from(DEAD, WINDOW, DEAD.c.window_id == WINDOW.c.id)
        .where(WINDOW.c.pipeline == pipeline_name, WINDOW.c.starts_at >= since)
        .group_by(DEAD.c.error_class)
        .order_by(count.desc(), DEAD.c.error_class)
    )
    return [
        {"error_class": name, "count": number, "windows": windows, "last": instant_text(last)}
        for name, number, windows, last in connection.execute(query)
    ]
