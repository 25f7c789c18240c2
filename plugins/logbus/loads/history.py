"""Everything in the ledger about one window: its ranges, its attempts, its dead letters, and what redrives and audits changed;
and whether two loads hold the same records: attempts at a window, two windows, or a window and the broker as it is now.

Each side of a comparison is one `WindowReading`: how many records in which range of which partition, and the fingerprint of just
those. Two readings with the same fingerprints are of the same records; if they differ, the partition is named, and what the
broker no longer holds is listed by offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, func, select

from logbus import errors, model
from logbus.fingerprint import as_text, combine, headers_of, record_hash
from logbus.formatting import many
from logbus.kafka.topics import OffsetLog
from logbus.loads.completeness import StampedHours, StreamCount, stamped_hours, streams_of
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, Pipeline, TaskKey, WindowCounts, instant_text
from logbus.windows import schema
from logbus.windows.log_changes import refuse_if_recreated
from logbus.windows.rows import COUNT_COLUMNS, Definition, Difference, Row, definition_of, differences


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt and its outcome. `counts`, `fingerprint` and `partitions` if it was committed; `task` is the Airflow task that
    began it, if one did; `definition` is how it loaded; `task_logins_note` is why its tasks logged in as the driver did, empty
    if they did not (logbus.loads.roles)."""

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


# Do two loads hold the same records? Attempts at a window, two windows, or a window and the broker as it is now.


# Per partition; a compacted topic may have a gap at every second offset.
HOLES_TOLD_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """What was read from a partition's range. `holes` are ranges of offsets [start, end) that held no record."""

    range: tuple[int, int]
    read: int
    fingerprint: str
    holes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """One side of a comparison. `partitions` None: the ledger has only the window's totals."""

    name: str
    read: int
    fingerprint: str
    partitions: Mapping[int, ComparedPartition] | None
    results: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDifference:
    """One property in which two readings differ."""

    what: str
    left: Any
    right: Any


def compare(left: WindowReading, right: WindowReading) -> list[RecordDifference]:
    """Everything in which two readings differ; empty means that they hold the same records, with the same results."""
    pairs: list[tuple[str, Any, Any]] = [("records", left.read, right.read), ("fingerprint", left.fingerprint, right.fingerprint)]
    both = sorted(set(left.results) & set(right.results))
    pairs += [(name, left.results[name], right.results[name]) for name in both]
    if left.partitions is not None and right.partitions is not None:
        for part in sorted({*left.partitions, *right.partitions}):
            pairs += partition_pairs(part, left.partitions.get(part), right.partitions.get(part))
    return [RecordDifference(what=what, left=before, right=other) for what, before, other in pairs if before != other]


def partition_pairs(part: int, left: ComparedPartition | None, right: ComparedPartition | None) -> Iterator[tuple[str, Any, Any]]:
    if left is None or right is None:
        yield f"partition {part}", left and "there", right and "there"
        return
    yield f"partition {part} offsets", list(left.range), list(right.range)
    yield f"partition {part} records", left.read, right.read
    yield f"partition {part} fingerprint", left.fingerprint, right.fingerprint
    if left.fingerprint != right.fingerprint:  # otherwise both have the same gaps, from transactions and compaction
        yield f"partition {part} offsets without a record", list(map(list, left.holes)), list(map(list, right.holes))


def attempt_reading(history: WindowHistory, number: int) -> WindowReading:
    """What an attempt loaded; `WindowUnknown` if it was never committed."""
    window, record = history.window, history.attempt(number)
    if record is None or record.counts is None or record.fingerprint is None:
        what = "is not there" if record is None else f"is {record.state}: only what was committed can be compared"
        raise errors.WindowUnknown(f"attempt {number} at window {window.interval} of {window.pipeline} {what}")
    return ledger_reading(f"attempt {number}", record.counts, record.fingerprint, partitions_of(window, record))


def ledger_reading(
    name: str, counts: model.WindowCounts, fingerprint: str, partitions: Mapping[int, ComparedPartition] | None
) -> WindowReading:
    results = {"loaded": counts.loaded, "dead-lettered": counts.dead_lettered, "filtered": counts.filtered}
    return WindowReading(name=name, read=counts.read, fingerprint=fingerprint, partitions=partitions, results=results)


def partitions_of(window: model.FrozenWindow, record: AttemptRecord | None) -> Mapping[int, ComparedPartition] | None:
    if record is None or record.partitions is None:
        return None
    nothing = {"read": 0, "fingerprint": as_text(0)}  # partitions without records are absent
    ranges = {part.partition: (part, record.partitions.get(str(part.partition), nothing)) for part in window.ranges}
    return {
        number: ComparedPartition(
            range=(part.readable_from, part.end_offset), read=values["read"], fingerprint=values["fingerprint"]
        )
        for number, (part, values) in ranges.items()
    }


def loaded_reading(history: WindowHistory) -> WindowReading:
    """What is public of a window; `WindowUnknown` if nothing is."""
    window = history.window
    if window.loaded_attempt is None or window.counts is None or window.fingerprint is None:
        raise errors.WindowUnknown(f"window {window.interval} of {window.pipeline} is not loaded: there is nothing to compare")
    partitions = partitions_of(window, history.attempt(window.loaded_attempt))
    return ledger_reading(f"{window.pipeline} {window.interval}", window.counts, window.fingerprint, partitions)


class ComparedRecord(Protocol):
    """What its hash needs of a consumed message."""

    def offset(self) -> int: ...

    def timestamp(self) -> tuple[int, int]: ...

    def key(self) -> bytes | None: ...

    def value(self) -> bytes | None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None: ...


ReadRange = Callable[[model.OffsetRange], Iterable[ComparedRecord]]


def broker_reading(window: model.FrozenWindow, log: OffsetLog, read: ReadRange) -> WindowReading:
    """Reads what the broker holds of a window now. `read` returns the records of a range; its head may already be deleted.

    Raises `TopicRecreated`, `ShortRead` or `BrokerUnavailable`.
    """
    refuse_if_recreated(window.topic, window.topic_id, log.topic(window.topic).topic_id)
    starts = log.start_offsets(window.topic, [part.partition for part in window.ranges])
    partitions = {part.partition: read_partition(part, starts[part.partition], read) for part in window.ranges}
    return WindowReading(
        name="broker",
        read=sum(part.read for part in partitions.values()),
        fingerprint=as_text(combine(int(part.fingerprint, 16) for part in partitions.values())),
        partitions=partitions,
    )


def read_partition(part: model.OffsetRange, log_start: int, read: ReadRange) -> ComparedPartition:
    first = min(max(part.readable_from, log_start), part.end_offset)
    rest = model.OffsetRange(topic=part.topic, partition=part.partition, start_offset=first, end_offset=part.end_offset)
    count, total, expected, holes = 0, 0, part.readable_from, list[tuple[int, int]]()
    for record in read(rest) if rest.count else ():
        offset = record.offset()
        if offset != expected:
            holes.append((expected, offset))
        expected = offset + 1
        count += 1
        stamp, headers = record.timestamp()[1], headers_of(record)
        total = combine([total, record_hash(part.partition, offset, stamp, record.key(), record.value(), headers)])
    if expected != part.end_offset:
        holes.append((expected, part.end_offset))
    return ComparedPartition(
        range=(part.readable_from, part.end_offset), read=count, fingerprint=as_text(total), holes=tuple(holes[:HOLES_TOLD_MAX])
    )
