"""Which hours a catch-up has to load: from the hour of the first record to that of the last, as far as they are closed.

Quiet hours in between belong to it: an empty window is a valid window and proves that nothing was there. Behind the last
record there is nothing to prove yet; those hours come when the clock or the schedule asks for them.

The log is asked by time only, which every broker answers from an index: the first record's time directly, the last one's
hour by halving. A partition that holds a stamp from the future answers every such question with it, so that one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from logbus.windows import boundaries
from logbus.windows.log_offsets import OffsetLog
from logbus.windows.model import Interval, Pipeline, utc


def closed_intervals(
    pipeline: Pipeline,
    log: OffsetLog,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> list[Interval]:
    """The closed intervals that hold the log's records, oldest first; `since` and `until` override where they begin and end."""
    span = record_span(pipeline, log, now)
    if span is None:
        return []
    start = floor(max(filter(None, (since or span.start, pipeline.starts_at))), pipeline.interval)
    end = min(utc(until) if until else span.end, utc(now) - pipeline.lateness)
    return list(islice(intervals(start, end, pipeline.interval), limit))


def floor(instant: datetime, length: timedelta) -> datetime:
    """The start of the interval that holds the instant, counted from the epoch."""
    return utc(instant) - (utc(instant) - boundaries.EPOCH) % length


def intervals(start: datetime, end: datetime, length: timedelta) -> Iterator[Interval]:
    """The whole intervals within [start, end)."""
    while start + length <= end:
        yield Interval(start, start + length)
        start += length


def record_span(pipeline: Pipeline, log: OffsetLog, now: datetime) -> Interval | None:
    """Whole intervals from that of the first record (by offset, in any partition) to that of the newest; None for no records."""
    facts, horizon = log.topic(pipeline.topic), boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    hidden = log.first_at_or_after(pipeline.topic, facts.partitions, horizon + 1)
    plain = [part for part in facts.partitions if part not in hidden]
    spans = [plain_span(pipeline, log, plain, now), *(scanned_span(pipeline, log, part, horizon) for part in hidden)]
    found = [span for span in spans if span is not None]
    if not found:
        return None
    length = pipeline.interval
    return Interval(floor(min(span.first for span in found), length), floor(max(span.last for span in found), length) + length)


@dataclass(frozen=True, slots=True, kw_only=True)
class StampSpan:
    """When the first record happened, and some instant in the interval of the newest."""

    first: datetime
    last: datetime


def plain_span(pipeline: Pipeline, log: OffsetLog, partitions: Iterable[int], now: datetime) -> StampSpan | None:
    """The span of partitions without stamps from the future, by questions to the index."""
    partitions = list(partitions)
    earliest = log.first_at_or_after(pipeline.topic, partitions, 0)
    if not earliest:
        return None

    def has_record_from(at: datetime) -> bool:
        return bool(log.first_at_or_after(pipeline.topic, partitions, boundaries.milliseconds(at)))

    first = instant(min(record.timestamp_ms for record in earliest.values()))
    beyond = floor(now + boundaries.max_ahead(pipeline), pipeline.interval) + pipeline.interval
    return StampSpan(first=first, last=last_interval(floor(first, pipeline.interval), beyond, pipeline.interval, has_record_from))


def last_interval(known: datetime, beyond: datetime, length: timedelta, has_record_from: Callable[[datetime], bool]) -> datetime:
    """The start of the last interval that has a record at or after its start, by halving [known, beyond)."""
    low, high = 0, (beyond - known) // length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has_record_from(known + middle * length) else (low, middle)
    return known + low * length


def scanned_span(pipeline: Pipeline, log: OffsetLog, partition: int, horizon: int) -> StampSpan | None:
    """The span of a partition that holds a stamp from the future, by reading it."""
    start = log.start_offsets(pipeline.topic, [partition])[partition]
    end = log.end_offsets(pipeline.topic, [partition], pipeline.isolation_level)[partition]
    first = last = None
    for record in log.records(pipeline.topic, partition, start, end):
        if 0 <= record.timestamp_ms <= horizon:
            first = record.timestamp_ms if first is None else first
            last = max(record.timestamp_ms, last or 0)
    return None if first is None or last is None else StampSpan(first=instant(first), last=instant(last))


def instant(timestamp_ms: int) -> datetime:
    return boundaries.EPOCH + timedelta(milliseconds=timestamp_ms)
