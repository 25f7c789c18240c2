"""Where an hour begins in a partition: pure decisions, no I/O.

B(T), the boundary of a partition at the instant T, is the offset of the first record at or after T, provided its
timestamp is between T and `horizon` (now + the pipeline's `max_ahead`). A record further ahead is no evidence that an
hour has begun: one timestamp of 2099 would otherwise make every later hour empty. If no record is evidence, B(T) is the log end
offset as it was read BEFORE the search: read the other way round, a record at or after T could land in the hour before. A
boundary is clamped between its frozen neighbours, so adjacent hours leave no gap and never overlap, whatever the order of
freezing.

Records at the very head of the log without a usable timestamp (none at all, or one in the future) go with the first usable
record after them: no earlier hour could ever hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from logbus import model, pipeline_settings
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog
from logbus.windows.pipeline_chains import PendingRange

MAX_AHEAD_DEFAULT = timedelta(minutes=pipeline_settings.PipelineSettings.max_ahead_minutes.default)


def max_ahead(pipeline: model.Pipeline) -> timedelta:
    """How far ahead of our clock a producer's clock may run before its timestamps are no longer evidence."""
    return timedelta(minutes=pipeline.options.max_ahead_minutes)


def horizon_ms(now: datetime, ahead: timedelta = MAX_AHEAD_DEFAULT) -> int:
    """The latest timestamp that is evidence."""
    return model.milliseconds(now + ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What is frozen around an instant: the boundary (or anchor) before it, and the boundary after it if there is one."""

    lower: int
    upper: int | None = None
    lower_is_anchor: bool = False


def is_evidence(record: OffsetAndTimestamp, at_ms: int, horizon: int) -> bool:
    return at_ms <= record.timestamp_ms <= horizon


def needs_scan(first: OffsetAndTimestamp | None, horizon: int) -> bool:
    """The time index found a record too far ahead: only reading the log can show what comes after it."""
    return first is not None and first.timestamp_ms > horizon


def decide(first: OffsetAndTimestamp | None, end_offset: int) -> int:
    """The boundary before clamping, if the first record found is evidence or none was found."""
    return end_offset if first is None else min(first.offset, end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What reading the log found: the boundary, and the first record up to it that has a usable timestamp."""

    offset: int
    first_stamped: OffsetAndTimestamp | None


def scan(records: Iterable[OffsetAndTimestamp], *, at_ms: int, horizon: int, end_offset: int) -> Scanned:
    """The boundary hidden by a timestamp in the future: the first evidence in `records`, which start at the lower neighbour."""
    first_stamped = None
    for record in records:
        if first_stamped is None and 0 <= record.timestamp_ms <= horizon:
            first_stamped = record
        if is_evidence(record, at_ms, horizon):
            return Scanned(offset=record.offset, first_stamped=first_stamped)
    return Scanned(offset=end_offset, first_stamped=first_stamped)


def with_the_head(offset: int, first_stamped: OffsetAndTimestamp | None, neighbours: Neighbours) -> int:
    """The boundary, or the head of the log if no record between the two has a usable timestamp."""
    is_head = neighbours.lower_is_anchor and (first_stamped is None or first_stamped.offset >= offset)
    return neighbours.lower if is_head else offset


def clamp(offset: int, neighbours: Neighbours) -> int:
    """Never below the boundary of an earlier instant, never above that of a later one."""
    at_least = max(offset, neighbours.lower)
    return at_least if neighbours.upper is None else min(at_least, neighbours.upper)


# Broker requests that show how far the closed hours reach: where they end in each partition and, later, the timestamp of the
# oldest record that is not loaded.
#
# They ask by time, which every broker answers from an index, for all partitions of a topic at once. If a timestamp in the future
# hides the answer, the records after the last frozen boundary are read, as freezing would do.


Undone = Mapping[int, Sequence[PendingRange]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """The log as it is now. `until` is when the last closed hour ended, `closed` where the closed hours end in each partition.

    `read` are the partitions that had to be read, with the records found there whose timestamps exceed all earlier ones.
    """

    until: datetime
    horizon: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    closed: Mapping[int, int]
    read: Mapping[int, Sequence[OffsetAndTimestamp]]

    @property
    def partitions(self) -> list[int]:
        return list(self.closed)


def take_snapshot(log: OffsetLog, pipeline: model.Pipeline, tails: Mapping[int, int], now: datetime) -> LogSnapshot:
    """`tails` are the last frozen boundaries. End offsets before first records, as in freezing: a record appended in between
    then belongs to an open hour and is not behind."""
    topic, until = pipeline.topic, pipeline.closed_until(now)
    horizon = horizon_ms(now, max_ahead(pipeline))
    ends = log.end_offsets(topic, tails, pipeline.isolation_level)
    first = log.first_at_or_after(topic, tails, model.milliseconds(until))
    starts = log.start_offsets(topic, tails)
    closed: dict[int, int] = {}
    read: dict[int, Sequence[OffsetAndTimestamp]] = {}
    for part, tail in tails.items():
        if needs_scan(first.get(part), horizon):
            records = log.records(topic, part, max(tail, starts[part]), ends[part])
            read[part] = rising(records, horizon)
            beyond = next((record for record in read[part] if record.timestamp_ms >= model.milliseconds(until)), None)
            closed[part] = ends[part] if beyond is None else beyond.offset
        else:
            closed[part] = decide(first.get(part), ends[part])
    return LogSnapshot(until=until, horizon=horizon, starts=starts, ends=ends, closed=closed, read=read)


def rising(records: Iterable[OffsetAndTimestamp], horizon: int) -> list[OffsetAndTimestamp]:
    """Records whose timestamp is evidence and later than every earlier one: the first at or after any instant is among them."""
    rising_records: list[OffsetAndTimestamp] = []
    for record in records:
        if (rising_records[-1].timestamp_ms if rising_records else -1) < record.timestamp_ms <= horizon:
            rising_records.append(record)
    return rising_records


def first_record_at(
    log: OffsetLog, pipeline: model.Pipeline, undone: Undone, snapshot: LogSnapshot, hour: datetime
) -> datetime | None:
    """The timestamp of the first record at or after the hour that is behind; None if only records of other hours are behind."""
    first = log.first_at_or_after(pipeline.topic, undone, model.milliseconds(hour))
    stamps = [
        model.instant(record.timestamp_ms)
        for part, record in first.items()
        if is_behind(record, undone[part], snapshot.closed[part])
    ]
    return min(stamps, default=None)


def is_behind(record: OffsetAndTimestamp, stretches: Sequence[PendingRange], closed: int) -> bool:
    return record.offset < closed and any(stretch.first <= record.offset < stretch.end for stretch in stretches)
