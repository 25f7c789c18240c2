"""Broker requests that show how far the closed hours reach: where they end in each partition and, later, the timestamp of the
oldest record that is not loaded.

They ask by time, which every broker answers from an index, for all partitions of a topic at once. If a timestamp in the future
hides the answer, the records after the last frozen boundary are read, as freezing would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from logbus.kafka.topics import FoundRecord, OffsetLog
from logbus.ledger import boundaries
from logbus.ledger.stretches import Stretch
from logbus.model import Pipeline, instant, milliseconds

Undone = Mapping[int, Sequence[Stretch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The log as it is now. `until` is when the last closed hour ended, `closed` where the closed hours end in each partition.

    `read` are the partitions that had to be read, with the records found there whose timestamps exceed all earlier ones.
    """

    until: datetime
    horizon: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    closed: Mapping[int, int]
    read: Mapping[int, Sequence[FoundRecord]]

    @property
    def partitions(self) -> list[int]:
        return list(self.closed)


def ask(log: OffsetLog, pipeline: Pipeline, tails: Mapping[int, int], now: datetime) -> Seen:
    """`tails` are the last frozen boundaries. End offsets before first records, as in freezing: a record appended in between
    then belongs to an open hour and is not behind."""
    topic, until = pipeline.topic, pipeline.closed_until(now)
    horizon = boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    ends = log.end_offsets(topic, tails, pipeline.isolation_level)
    first = log.first_at_or_after(topic, tails, milliseconds(until))
    starts = log.start_offsets(topic, tails)
    closed: dict[int, int] = {}
    read: dict[int, Sequence[FoundRecord]] = {}
    for part, tail in tails.items():
        if boundaries.needs_scan(first.get(part), horizon):
            records = log.records(topic, part, max(tail, starts[part]), ends[part])
            read[part] = rising(records, horizon)
            beyond = next((one for one in read[part] if one.timestamp_ms >= milliseconds(until)), None)
            closed[part] = ends[part] if beyond is None else beyond.offset
        else:
            closed[part] = boundaries.decide(first.get(part), ends[part])
    return Seen(until=until, horizon=horizon, starts=starts, ends=ends, closed=closed, read=read)


def rising(records: Iterable[FoundRecord], horizon: int) -> list[FoundRecord]:
    """Records whose timestamp is evidence and later than every earlier one: the first at or after any instant is among them."""
    found: list[FoundRecord] = []
    for record in records:
        if (found[-1].timestamp_ms if found else -1) < record.timestamp_ms <= horizon:
            found.append(record)
    return found


def first_record_at(log: OffsetLog, pipeline: Pipeline, undone: Undone, seen: Seen, hour: datetime) -> datetime | None:
    """The timestamp of the first record at or after the hour that is behind; None if only records of other hours are behind."""
    found = log.first_at_or_after(pipeline.topic, undone, milliseconds(hour))
    stamps = [
        instant(record.timestamp_ms) for part, record in found.items() if is_behind(record, undone[part], seen.closed[part])
    ]
    return min(stamps, default=None)


def is_behind(record: FoundRecord, stretches: Sequence[Stretch], closed: int) -> bool:
    return record.offset < closed and any(one.first <= record.offset < one.end for one in stretches)
