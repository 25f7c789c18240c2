"""Everything in the ledger about one window: its ranges, its attempts, its dead letters, and what redrives and audits changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from logbus.formatting import many
from logbus.loads.ledger import Ledger
from logbus.loads.producers import StreamCount, streams_of
from logbus.loads.stamped_hours import StampedHours, stamped_hours
from logbus.model import FrozenWindow, Pipeline, TaskKey, WindowCounts, instant_text
from logbus.windows import schema
from logbus.windows.rows import COUNT_COLUMNS, Definition, Difference, Row, definition_of, differences


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt and its outcome. `counts`, `fingerprint` and `partitions` if it was committed; `task` is the Airflow task that
    began it, if one did; `definition` is how it loaded; `task_logins_note` is why its tasks logged in as the driver did, empty
    if they did not (logbus.loads.task_logins)."""

    number: int
    state: str
    run_id: str
    try_number: int
    began_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None
    error: str | None
    counts: WindowCounts | None
    fingerprint: str | None
    partitions: Mapping[str, Mapping[str, Any]] | None
    error_samples: Mapping[str, Any] | None
    task: TaskKey | None = None
    definition: Definition | None = None
    task_logins_note: str | None = None

    @property
    def task_logins(self) -> str | None:
        """Which logins its tasks had; None where that is not known."""
        if self.task_logins_note is None:
            return None
        return f"none of their own: {self.task_logins_note}" if self.task_logins_note else "of their own"

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "number": self.number,
            "state": self.state,
            "run_id": self.run_id,
            "try_number": self.try_number,
            "began_at": instant_text(self.began_at),
            "heartbeat_at": instant_text(self.heartbeat_at),
            "ended_at": self.ended_at and instant_text(self.ended_at),
            "error": self.error,
            "counts": self.counts and asdict(self.counts),
            "fingerprint": self.fingerprint,
            "partitions": self.partitions,
            "error_samples": self.error_samples,
            "dag_id": self.task and self.task.dag_id,
            "task_id": self.task and self.task.task_id,
            "map_index": self.task and self.task.map_index,
            "task_logins": self.task_logins,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowHistory:
    """`spans` are the first and last timestamps loaded in each partition, `dead_letters` their number by error class. `hours`
    is None if nothing is loaded."""

    window: FrozenWindow
    attempts: tuple[AttemptRecord, ...]
    spans: Mapping[int, tuple[datetime | None, datetime | None]]
    dead_letters: Mapping[str, int]
    redrives: tuple[Mapping[str, Any], ...]
    audit_problems: tuple[str, ...]
    streams: tuple[StreamCount, ...] = ()
    changes: tuple[Difference, ...] = ()  # of the pipeline's definition, since the attempt that is loaded began
    hours: StampedHours | None = None

    def attempt(self, number: int) -> AttemptRecord | None:
        return next((record for record in self.attempts if record.number == number), None)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values: the window's own summary plus the rest."""
        return {
            **self.window.summary(),
            "frozen_at": self.window.frozen_at and instant_text(self.window.frozen_at),
            "loaded_at": self.window.loaded_at and instant_text(self.window.loaded_at),
            "topic": self.window.topic,
            "topic_id": self.window.topic_id,
            "head_unknown": self.window.head_unknown,
            "attempts": [record.summary() for record in self.attempts],
            "timestamps": {str(part): [at and instant_text(at) for at in span] for part, span in self.spans.items()},
            "dead_letters": dict(self.dead_letters),
            "redrives": [{**record, "redriven_at": instant_text(record["redriven_at"])} for record in self.redrives],
            "audit_problems": list(self.audit_problems),
            "producers": [record.summary() for record in self.streams],
            "definition_changes": [str(change) for change in self.changes],
            "stamped_hours": self.hours and self.hours.summary(),
        }


def window_history(engine: Engine, pipeline_name: str, start: datetime) -> WindowHistory:
    """The window that begins at `start`, or `WindowUnknown`."""
    ledger = Ledger(engine)
    window, registered = ledger.window(pipeline_name, start), ledger.registered(pipeline_name)
    with engine.connect() as connection:
        attempts = tuple(to_record(row) for row in rows_of(connection, schema.attempt, window.id, "number"))
        return WindowHistory(
            window=window,
            attempts=attempts,
            spans=spans_of(connection, window.id),
            dead_letters=dead_letter_counts(connection, window.id),
            redrives=tuple(redrives_of(connection, window.id)),
            audit_problems=audit_problems(connection, window.id),
            streams=tuple(streams_of(connection, window)),
            changes=changes_since(attempts, window.loaded_attempt, registered),
            hours=stamped_hours(connection, window),
        )


def changes_since(attempts: Sequence[AttemptRecord], loaded: int | None, registered: Pipeline) -> tuple[Difference, ...]:
    """How the pipeline's definition now differs from that of the loaded attempt."""
    definitions = [record.definition for record in attempts if record.number == loaded and record.definition is not None]
    return tuple(difference for definition in definitions for difference in differences(definition, definition_of(registered)))


def rows_of(connection: Connection, table: Any, window_id: int, order: str) -> list[Row]:
    query = select(table).where(table.c.window_id == window_id).order_by(table.c[order])
    return list(connection.execute(query).mappings())


def to_record(row: Row) -> AttemptRecord:
    counted = row["read_count"] is not None
    same = ("number", "state", "run_id", "try_number", "began_at", "heartbeat_at", "ended_at", "error")
    return AttemptRecord(
        **{name: row[name] for name in same},
        counts=WindowCounts(**{name: row[column] for name, column in COUNT_COLUMNS.items()}) if counted else None,
        fingerprint=row["fingerprint"],
        partitions=row["partitions"],
        error_samples=row["error_samples"],
        task=to_task(row),
        definition=row["definition"],
        task_logins_note=row["task_logins_note"],
    )


def to_task(row: Row) -> TaskKey | None:
    if row["dag_id"] is None:
        return None
    return TaskKey(dag_id=row["dag_id"], task_id=row["task_id"], map_index=row["map_index"])


def spans_of(connection: Connection, window_id: int) -> dict[int, tuple[datetime | None, datetime | None]]:
    rows = rows_of(connection, schema.window_range, window_id, "partition")
    return {row["partition"]: (row["first_timestamp"], row["last_timestamp"]) for row in rows}


def dead_letter_counts(connection: Connection, window_id: int) -> dict[str, int]:
    dead = schema.dead_letter
    query = select(dead.c.error_class, func.count()).where(dead.c.window_id == window_id).group_by(dead.c.error_class)
    rows = connection.execute(query.order_by(func.count().desc(), dead.c.error_class)).all()
    return {name: count for name, count in rows}  # noqa: C416  # dict() of rows has no types


def redrives_of(connection: Connection, window_id: int) -> list[dict[str, Any]]:
    names = {"tried": "tried_count", "loaded": "loaded_count", "dead_lettered": "dead_lettered_count"}
    return [
        {
            **{name: row[name] for name in ("redriven_at", "run_id", "attempt")},
            **{name: row[column] for name, column in names.items()},
        }
        for row in rows_of(connection, schema.redrive, window_id, "id")
    ]


def audit_problems(connection: Connection, window_id: int) -> tuple[str, ...]:
    query = select(schema.window.c.audit_problems).where(schema.window.c.id == window_id)
    return tuple(connection.execute(query).scalar_one() or ())


def other_records_text(note: Mapping[str, Any]) -> str:
    """The note on a reload that replaced records with others, as its run was allowed to."""
    return (
        f"{note['at']}: attempt {note['attempt']} of run {note['run_id']} replaced its records by others, as that run accepts: "
        f"{many(note['read_before'], 'record')} with fingerprint {note['fingerprint_before']} by {note['read_after']:,} with "
        f"{note['fingerprint_after']}"
    )
