"""What the ledger knows of streams: which there are, how each of them is, how far it is behind, and what became of each hour.

One computation for the command line, the pages, the exporter and the sensor. Where the log ends is asked by the caller, who has a
reading of the broker already; without one it is unknown how far a stream is behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from logbus import model
from logbus.formatting import first_line, many
from logbus.kafka.topics import OffsetLog
from logbus.streams.definition import Stream, of_ledger
from logbus.streams.joins import unknown_stream
from logbus.windows import rows, schema

NEW, RUNNING, SILENT, STOPPED, FAILED = ("new", "running", "silent", "stopped", "failed")
PROVEN, DIFFERENT, BEHIND, NOT_LOADED = ("proven", "different", "behind", "not loaded")
HOUR_STATES = (PROVEN, DIFFERENT, BEHIND)
LATELY = timedelta(minutes=1)  # over which the rate is taken: some epochs, unless little arrives


# A window that its audit found exact: what an audit has found wrong is no witness.
IS_AUDITED = sa.and_(
    schema.window.c.loaded_attempt.is_not(None),
    schema.window.c.audited_at.is_not(None),
    sa.or_(schema.window.c.audit_problems.is_(None), sa.cast(schema.window.c.audit_problems, sa.Text).in_(rows.NO_PROBLEMS)),
)
# It was compared with what it holds now.
IS_SAME_LOAD = sa.and_(
    schema.stream_hour.c.loaded_attempt == schema.window.c.loaded_attempt,
    schema.stream_hour.c.loaded_count == schema.window.c.loaded_count,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLag:
    """Records of the topic that are not counted, and how old the newest is that is; None where it is not known."""

    records: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """A stream as it is at an instant.

    `state`: `running` sends heartbeats, `silent` sends none although it has not ended, `new` has never run. `error`: what ended
    it, or what it waits for. `positions`: the end of what is committed, by partition. `read_lately`: records of the last minute's
    epochs. Audited hours: `proven` equal to their newest loads, `different` from them, or `behind` because not proven yet.
    """

    stream: Stream
    topic: str
    isolation_level: str
    at: datetime
    state: str
    owner: int
    run_id: str | None
    began_at: datetime | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    error: str | None
    positions: Mapping[int, int]
    epochs: int
    committed_at: datetime | None
    newest_timestamp: datetime | None
    read_lately: int
    proven: int
    different: int
    behind: int

    @property
    def heartbeat_age(self) -> float | None:
        """In seconds; None while no driver is at work, or ought to be."""
        return (self.at - self.heartbeat_at).total_seconds() if self.heartbeat_at and self.state in (RUNNING, SILENT) else None

    def lag(self, log_ends: Mapping[int, int] | None) -> StreamLag:
        """Where all is counted it is 0 seconds, however old the last record is."""
        if not log_ends:
            return StreamLag()
        records = sum(max(0, end - self.positions.get(partition, 0)) for partition, end in log_ends.items())
        if not records:
            return StreamLag(records=0, seconds=0.0)
        newest = self.newest_timestamp
        return StreamLag(records=records, seconds=None if newest is None else max(0.0, (self.at - newest).total_seconds()))

    def problem(self, lag: StreamLag, seconds_max: float) -> str | None:
        """Why its counts are not as fresh as that, or will not be for long; None if they are."""
        if self.state == FAILED:
            return f"its driver ended: {first_line(self.error or 'no reason is known')}"
        if self.state == SILENT:
            return f"its driver sent its last heartbeat {span(self.heartbeat_age)} ago"
        if self.state != RUNNING:
            return "no driver has run it yet" if self.state == NEW else "its driver was stopped"
        if self.error is not None:
            return f"its driver waits: {first_line(self.error)}"
        if lag.records is None:
            return "how far it is behind is unknown: the broker does not answer"
        if lag.records and (lag.seconds is None or lag.seconds > seconds_max):
            age = "" if lag.seconds is None else f", and what is counted ends {span(lag.seconds)} ago"
            return f"{many(lag.records, 'record')} not counted yet{age}"
        return None

    def summary(self, lag: StreamLag) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("topic", "state", "run_id", "epochs", "read_lately", "proven", "different", "behind", "error")
        instants = ("began_at", "heartbeat_at", "ended_at", "committed_at", "newest_timestamp")
        return {
            "name": self.stream.name,
            "pipeline": self.stream.pipeline,
            "table": self.stream.table,
            **self.stream.definition(),
            **{name: getattr(self, name) for name in same},
            **{name: at and model.instant_text(at) for name in instants for at in [getattr(self, name)]},
            "positions": {str(partition): offset for partition, offset in self.positions.items()},
            "lag_records": lag.records,
            "lag_seconds": lag.seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHourStatus:
    """An hour of arrival: what the stream has read of it, what its load brought, and how the two compare. `replaced_by`: the
    attempt whose values took the place of the stream's, because the window was loaded again or they differed."""

    hour: datetime
    state: str
    read: int
    loaded: int | None
    attempt: int | None
    proven_at: datetime | None
    replaced_by: int | None
    difference_count: int
    differences: Sequence[Any]

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("state", "read", "loaded", "attempt", "replaced_by", "difference_count")
        proven_at = self.proven_at and model.instant_text(self.proven_at)
        values = {name: getattr(self, name) for name in same}
        return {"hour": model.instant_text(self.hour), **values, "proven_at": proven_at, "differences": list(self.differences)}


def span(seconds: float | None) -> str:
    """`0:02:05`; a dash where it is unknown."""
    return "-" if seconds is None else str(timedelta(seconds=int(seconds)))


def log_ends(log: OffsetLog, status: StreamStatus) -> dict[int, int]:
    """Where the topic ends now, as the stream reads it."""
    return log.end_offsets(status.topic, log.topic(status.topic).partitions, status.isolation_level)


def all_statuses(connection: sa.Connection, now: datetime, pipeline: str | None = None) -> list[StreamStatus]:
    """Of every stream, or of those of a pipeline, by name."""
    return _statuses(connection, now, sa.true() if pipeline is None else schema.stream.c.pipeline == pipeline)


def status_of(connection: sa.Connection, name: str, now: datetime) -> StreamStatus:
    statuses = _statuses(connection, now, schema.stream.c.name == name)
    if not statuses:
        raise unknown_stream(connection, name)
    return statuses[0]


def _statuses(connection: sa.Connection, now: datetime, chosen: sa.ColumnElement[bool]) -> list[StreamStatus]:
    stream, pipeline, part = schema.stream, schema.pipeline, schema.stream_partition
    positions: dict[str, dict[int, int]] = {}
    of_parts = sa.select(part.c.stream, part.c.partition, part.c.end_offset).join(stream, stream.c.name == part.c.stream)
    for name, partition, offset in connection.execute(of_parts.where(chosen).order_by(part.c.partition)):
        positions.setdefault(name, {})[partition] = offset
    epochs, hours = _in_epochs(now), _in_hours()
    joined = stream.join(pipeline, pipeline.c.name == stream.c.pipeline)
    joined = joined.outerjoin(epochs, epochs.c.stream == stream.c.name).outerjoin(hours, hours.c.stream == stream.c.name)
    figures = [column for part in (epochs, hours) for column in part.c if column.name != "stream"]
    query = sa.select(stream, pipeline.c.isolation_level, *figures).select_from(joined).where(chosen).order_by(stream.c.name)
    return [
        StreamStatus(
            stream=of_ledger(row),
            topic=row["topic"],
            isolation_level=row["isolation_level"],
            at=now,
            state=_state_of(row, now),
            owner=row["owner"],
            run_id=row["owner_run"],
            began_at=row["began_at"],
            heartbeat_at=row["heartbeat_at"],
            ended_at=row["ended_at"],
            error=row["error"],
            positions=positions.get(row["name"], {}),
            epochs=row["epochs"] or 0,
            committed_at=row["newest_commit"],
            newest_timestamp=row["newest_timestamp"],
            read_lately=int(row["read_lately"] or 0),
            proven=row[PROVEN] or 0,
            different=row[DIFFERENT] or 0,
            behind=row[BEHIND] or 0,
        )
        for row in connection.execute(query).mappings()
    ]


def _state_of(row: Mapping[Any, Any], now: datetime) -> str:
    if row["began_at"] is None:
        return NEW
    if row["ended_at"] is not None:
        return STOPPED if row["error"] is None else FAILED
    return RUNNING if now - row["heartbeat_at"] <= rows.HEARTBEAT_EXPIRY else SILENT


def _in_epochs(now: datetime) -> sa.Subquery:
    epoch, total = schema.stream_epoch, sa.func.sum
    lately = total(epoch.c.read_count).filter(epoch.c.committed_at > now - LATELY)
    newest = [sa.func.max(epoch.c[name]) for name in ("number", "committed_at", "newest_timestamp")]
    labels = ("epochs", "newest_commit", "newest_timestamp")
    columns = [column.label(label) for column, label in zip(newest, labels, strict=True)]
    return sa.select(epoch.c.stream, *columns, lately.label("read_lately")).group_by(epoch.c.stream).subquery()


def _in_hours() -> sa.Subquery:
    stream, window, hour = schema.stream, schema.window, schema.stream_hour
    is_known = hour.c.hour.is_not(None)
    kinds: dict[str, sa.ColumnElement[bool]] = {
        PROVEN: sa.and_(is_known, hour.c.state == PROVEN, IS_SAME_LOAD),
        DIFFERENT: sa.and_(is_known, hour.c.state == DIFFERENT),
        BEHIND: sa.or_(sa.not_(is_known), sa.and_(hour.c.state == PROVEN, sa.not_(IS_SAME_LOAD))),
    }
    counts = [sa.func.count().filter(kind).label(name) for name, kind in kinds.items()]
    is_of = sa.and_(hour.c.stream == stream.c.name, hour.c.hour == window.c.starts_at)
    pairs = stream.join(window, window.c.pipeline == stream.c.pipeline).outerjoin(hour, is_of)
    query = sa.select(stream.c.name.label("stream"), *counts).select_from(pairs)
    is_after_start = sa.or_(stream.c.since.is_(None), window.c.starts_at >= stream.c.since)
    return query.where(IS_AUDITED, window.c.topic_id == stream.c.topic_id, is_after_start).group_by(stream.c.name).subquery()


def hours_of(connection: sa.Connection, name: str, since: datetime | None, until: datetime | None) -> list[StreamHourStatus]:
    """Those that begin in [since, until), of which the stream has read something, or which were compared."""
    part, hour, window, stream = schema.epoch_part, schema.stream_hour, schema.window, schema.stream
    read = sa.select(part.c.hour, sa.func.sum(part.c.read_count).label("read")).where(part.c.stream == name)
    parts = read.group_by(part.c.hour).subquery()
    of_stream = sa.select(hour).where(hour.c.stream == name).subquery()
    start = sa.func.coalesce(parts.c.hour, of_stream.c.hour).label("start")
    pipeline = sa.select(stream.c.pipeline).where(stream.c.name == name).scalar_subquery()
    is_loaded = sa.and_(window.c.pipeline == pipeline, window.c.starts_at == start, window.c.loaded_attempt.is_not(None))
    of_window = (window.c.read_count, window.c.loaded_attempt.label("attempt"), window.c.loaded_count.label("rows"))
    query = (
        sa.select(start, parts.c.read, *of_window, of_stream)
        .select_from(parts.join(of_stream, of_stream.c.hour == parts.c.hour, full=True).outerjoin(window, is_loaded))
        .order_by(start)
    )
    query = query if since is None else query.where(start >= since)
    query = query if until is None else query.where(start < until)
    return [
        StreamHourStatus(
            hour=row["start"],
            state=_hour_state(row),
            read=int(row["read"] or 0),
            loaded=row["read_count"],
            attempt=row["attempt"],
            proven_at=row["proven_at"],
            replaced_by=row["replaced_by"],
            difference_count=row["difference_count"] or 0,
            differences=row["differences"] or (),
        )
        for row in connection.execute(query).mappings()
    ]


def _hour_state(row: Mapping[Any, Any]) -> str:
    if row["state"] == DIFFERENT:
        return DIFFERENT
    if row["attempt"] is None:
        return NOT_LOADED
    return PROVEN if (row["loaded_attempt"], row["loaded_count"]) == (row["attempt"], row["rows"]) else BEHIND
