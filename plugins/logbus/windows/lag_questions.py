"""What lag asks the broker: where the closed hours end in each partition, and which hours hold what is not loaded.

Asked by time, which every broker answers from an index, for all partitions of a topic at once. Where a stamp from the future
hides the answer, the records behind the last frozen boundary are read: that is what freezing would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from logbus.windows import boundaries
from logbus.windows.catch_up import floor, instant, last_interval
from logbus.windows.log_offsets import FoundRecord, OffsetLog
from logbus.windows.model import Interval, Pipeline
from logbus.windows.stretches import PipelineChain, Stretch

Undone = Mapping[int, Sequence[Stretch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The log as it is now. `closed` is where the closed hours end in each partition.

    `span` reaches from the first hour that is the pipeline's to the last closed one that holds a record, or a window.
    """

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    closed: Mapping[int, int]
    span: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The closed records of a partition that no window holds: where they end, and the newest of them where they were read."""

    closed: int
    newest: datetime | None = None


def ask(log: OffsetLog, pipeline: Pipeline, chain: PipelineChain, undone: Undone, now: datetime) -> Seen:
    """End offsets before first records, as in freezing: a record that comes meanwhile is open, not behind."""
    topic, closed_until = pipeline.topic, floor(now - pipeline.lateness, pipeline.interval)
    ends = log.end_offsets(topic, undone, pipeline.isolation_level)
    first = log.first_at_or_after(topic, undone, boundaries.milliseconds(closed_until))
    starts = log.start_offsets(topic, undone)
    horizon = boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    tails: dict[int, Tail] = {}
    for part, stretches in undone.items():
        if boundaries.needs_scan(first.get(part), horizon):
            begin = max(stretches[-1].first, starts[part])
            tails[part] = read_tail(log, pipeline, part, (begin, ends[part]), closed_until, horizon)
        else:
            tails[part] = Tail(closed=boundaries.decide(first.get(part), ends[part]))
    closed = {part: tail.closed for part, tail in tails.items()}
    begin_at = first_hour(log, pipeline, chain, undone, starts, closed, now)
    if begin_at is None:
        return Seen(starts=starts, ends=ends, closed=closed, span=None)
    filled = {part: tail for part, tail in tails.items() if tail.closed > max(undone[part][-1].first, starts[part])}
    end_at = last_hour_end(log, pipeline, chain, filled, begin_at, closed_until)
    span = Interval(begin_at, end_at) if begin_at < end_at else None
    return Seen(starts=starts, ends=ends, closed=closed, span=span)


def read_tail(
    log: OffsetLog, pipeline: Pipeline, partition: int, offsets: tuple[int, int], closed_until: datetime, horizon: int
) -> Tail:
    """By reading: the first record from `closed_until` on that is no stamp from the future, and the newest before it."""
    at_ms, newest = boundaries.milliseconds(closed_until), instant(0)
    for record in log.records(pipeline.topic, partition, *offsets):
        if boundaries.is_evidence(record, at_ms, horizon):
            return Tail(closed=record.offset, newest=newest)
        if 0 <= record.timestamp_ms < at_ms:
            newest = max(newest, instant(record.timestamp_ms))
    return Tail(closed=offsets[1], newest=newest)


def first_hour(
    log: OffsetLog,
    pipeline: Pipeline,
    chain: PipelineChain,
    undone: Undone,
    starts: Mapping[int, int],
    closed: Mapping[int, int],
    now: datetime,
) -> datetime | None:
    """Where the pipeline's hours begin: its start, its first window, or the hour of the first record that lies before it."""
    if pipeline.starts_at is not None:
        return floor(pipeline.starts_at, pipeline.interval)
    window = chain.windows[0].interval.start if chain.windows else None
    waiting = [part for part, found in undone.items() if found[0].within(starts[part], closed[part])]
    heads = [part for part in waiting if window is None or lies_before(chain, part, undone[part][0])]
    found = log.first_at_or_after(pipeline.topic, heads, 0) if heads else {}
    horizon = boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    stamps = [instant(record.timestamp_ms) for record in found.values() if record.timestamp_ms <= horizon]
    hours = [floor(stamp, pipeline.interval) for stamp in stamps]
    return min([*hours, *([] if window is None else [window])], default=None)


def lies_before(chain: PipelineChain, partition: int, stretch: Stretch) -> bool:
    """Whether the stretch lies before the partition's first window: hours that nobody froze."""
    starts = [part.start_offset for window in chain.windows[:1] for part in window.ranges if part.partition == partition]
    return any(stretch.end <= start for start in starts)


def last_hour_end(
    log: OffsetLog,
    pipeline: Pipeline,
    chain: PipelineChain,
    tails: Mapping[int, Tail],
    begin_at: datetime,
    closed_until: datetime,
) -> datetime:
    """The end of the last window, or of the last closed hour that holds one of the records behind it."""
    frozen_until = chain.windows[-1].interval.end if chain.windows else begin_at
    if not tails or frozen_until >= closed_until:
        return frozen_until
    plain = [part for part, tail in tails.items() if tail.newest is None]

    def has_record_from(at: datetime) -> bool:
        found = log.first_at_or_after(pipeline.topic, plain, boundaries.milliseconds(at))
        return any(record.offset < tails[part].closed for part, record in found.items())

    newest = [tail.newest for tail in tails.values() if tail.newest is not None]
    if plain:
        newest.append(last_interval(frozen_until, closed_until, pipeline.interval, has_record_from))
    latest = max(floor(max(newest), pipeline.interval), frozen_until)
    return min(latest + pipeline.interval, closed_until)


def first_record_at(log: OffsetLog, pipeline: Pipeline, undone: Undone, seen: Seen, hour: datetime) -> datetime | None:
    """The timestamp of the first record from the hour on that is behind; None where only records of other hours are."""
    found = log.first_at_or_after(pipeline.topic, undone, boundaries.milliseconds(hour))
    stamps = [
        instant(record.timestamp_ms) for part, record in found.items() if is_behind(record, undone[part], seen.closed[part])
    ]
    return min(stamps, default=None)


def is_behind(record: FoundRecord, stretches: Sequence[Stretch], closed: int) -> bool:
    return record.offset < closed and any(one.first <= record.offset < one.end for one in stretches)
