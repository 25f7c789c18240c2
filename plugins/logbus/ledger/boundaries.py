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

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from logbus.kafka.topics import FoundRecord
from logbus.model import Pipeline, milliseconds
from logbus.pipeline_settings import PipelineSettings

MAX_AHEAD_DEFAULT = timedelta(minutes=PipelineSettings.max_ahead_minutes.default)


def max_ahead(pipeline: Pipeline) -> timedelta:
    """How far ahead of our clock a producer's clock may run before its timestamps are no longer evidence."""
    return timedelta(minutes=pipeline.options.max_ahead_minutes)


def horizon_ms(now: datetime, ahead: timedelta = MAX_AHEAD_DEFAULT) -> int:
    """The latest timestamp that is evidence."""
    return milliseconds(now + ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What is frozen around an instant: the boundary (or anchor) before it, and the boundary after it if there is one."""

    lower: int
    upper: int | None = None
    lower_is_anchor: bool = False


def is_evidence(record: FoundRecord, at_ms: int, horizon: int) -> bool:
    return at_ms <= record.timestamp_ms <= horizon


def needs_scan(first: FoundRecord | None, horizon: int) -> bool:
    """The time index found a record too far ahead: only reading the log can show what comes after it."""
    return first is not None and first.timestamp_ms > horizon


def decide(first: FoundRecord | None, end_offset: int) -> int:
    """The boundary before clamping, if the first record found is evidence or none was found."""
    return end_offset if first is None else min(first.offset, end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What reading the log found: the boundary, and the first record up to it that has a usable timestamp."""

    offset: int
    first_stamped: FoundRecord | None


def scan(records: Iterable[FoundRecord], *, at_ms: int, horizon: int, end_offset: int) -> Scanned:
    """The boundary hidden by a timestamp in the future: the first evidence in `records`, which start at the lower neighbour."""
    first_stamped = None
    for record in records:
        if first_stamped is None and 0 <= record.timestamp_ms <= horizon:
            first_stamped = record
        if is_evidence(record, at_ms, horizon):
            return Scanned(offset=record.offset, first_stamped=first_stamped)
    return Scanned(offset=end_offset, first_stamped=first_stamped)


def with_the_head(offset: int, first_stamped: FoundRecord | None, neighbours: Neighbours) -> int:
    """The boundary, or the head of the log if no record between the two has a usable timestamp."""
    is_head = neighbours.lower_is_anchor and (first_stamped is None or first_stamped.offset >= offset)
    return neighbours.lower if is_head else offset


def clamp(offset: int, neighbours: Neighbours) -> int:
    """Never below the boundary of an earlier instant, never above that of a later one."""
    at_least = max(offset, neighbours.lower)
    return at_least if neighbours.upper is None else min(at_least, neighbours.upper)
