"""What windows must be, specified a second time and as plainly as possible: one thread, no database, every record looked at.

The ledger uses indexes, locks rows and clamps offsets; here a boundary is found by a walk over all records of the partition. The
two must agree on every offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from logbus.model import Interval, milliseconds

from tests.support.fake_log import FakePartition

FUTURE = timedelta(hours=1)
LATENESS = timedelta(minutes=5)

Ranges = dict[int, tuple[int, int, int]]  # by partition: start, end, and how many records at its head are lost


class Lost(Exception):
    """The window cannot be frozen: deleted records belong, or may belong, to it."""


@dataclass
class ChainModel:
    """The boundaries of one topic (a recreated topic begins another chain)."""

    anchors: dict[int, tuple[datetime | None, int]] = field(default_factory=dict)
    boundaries: dict[int, dict[datetime, int]] = field(default_factory=dict)

    def freeze(self, partitions: list[FakePartition], interval: Interval, now: datetime, last_end: datetime | None) -> Ranges:
        """Decides the interval's boundaries in every partition. A new partition begins after the last window."""
        for number in range(len(partitions)):
            self.anchors.setdefault(number, (last_end, 0))
            self.boundaries.setdefault(number, {})
        return {number: self.range_of(number, part, interval, now) for number, part in enumerate(partitions)}

    def range_of(self, number: int, part: FakePartition, interval: Interval, now: datetime) -> tuple[int, int, int]:
        unknown = self.known(number, interval.start) is None and self.may_be_cut(number, part, interval.start, now)
        start, end = (self.decide(number, part, at, now) for at in (interval.start, interval.end))
        lost = max(0, min(part.start_offset, end) - start)
        if lost or unknown:
            raise Lost(f"partition {number}: {start}, {end}, log from {part.start_offset}")
        return start, end, lost

    def known(self, number: int, at: datetime) -> int | None:
        anchored_at, offset = self.anchors[number]
        if anchored_at is not None and anchored_at >= at:
            return offset
        return self.boundaries[number].get(at)

    def around(self, number: int, at: datetime) -> tuple[int, int | None, bool]:
        """The frozen offsets before and after, and whether the one before is the anchor."""
        before = [offset for when, offset in self.boundaries[number].items() if when < at]
        behind = [offset for when, offset in self.boundaries[number].items() if when > at]
        return max(before, default=self.anchors[number][1]), min(behind, default=None), not before

    def decide(self, number: int, part: FakePartition, at: datetime, now: datetime) -> int:
        known = self.known(number, at)
        if known is not None:
            return known
        lower, upper, is_first = self.around(number, at)
        found = max(lower, self.candidate(part, at, now, lower, is_first))
        self.boundaries[number][at] = found if upper is None else min(found, upper)
        return self.boundaries[number][at]

    def candidate(self, part: FakePartition, at: datetime, now: datetime, lower: int, is_first: bool) -> int:
        """The first record from `at` on that is not from the future, else the end; if one from the future hides it, the first one
        after the previous boundary. Records without a usable time at the head of the whole log go with what follows them."""
        end, horizon, at_ms = part.end_offset("read_committed"), milliseconds(now + FUTURE), milliseconds(at)
        records = list(part.records(0, len(part.stamps_ms)))
        if any(record.timestamp_ms > horizon for record in [one for one in records if one.timestamp_ms >= at_ms][:1]):
            records = [record for record in records if record.offset >= lower]
        found = min([record.offset for record in records if at_ms <= record.timestamp_ms <= horizon] + [end])
        older = [record for record in records if record.offset < found and 0 <= record.timestamp_ms < at_ms]
        return found if older or not is_first else lower

    def may_be_cut(self, number: int, part: FakePartition, at: datetime, now: datetime) -> bool:
        """Whether deleted records may have timestamps at or after `at`: they were written before the first remaining one, which
        was on time, by clocks that are not further ahead than FUTURE."""
        lower, upper, _ = self.around(number, at)
        if upper is not None and upper <= lower:
            return False
        horizon = milliseconds(now + FUTURE)
        left = [record.timestamp_ms for record in part.records(0, len(part.stamps_ms)) if 0 <= record.timestamp_ms <= horizon]
        latest = left[0] + (LATENESS + FUTURE) // timedelta(milliseconds=1) if left else horizon
        return part.start_offset > lower and milliseconds(at) <= latest


def is_undecided(part: FakePartition, interval: Interval, now: datetime, lower: int) -> bool:
    """Whether an open transaction holds records that may belong to the interval: no record before it, nor its first one, shows
    that the interval was over. If one from the future hides that, only what follows the previous boundary is looked at."""
    if part.stable_end is None:
        return False
    horizon, end_ms = milliseconds(now + FUTURE), milliseconds(interval.end)
    later = [record for record in part.records(0, len(part.stamps_ms)) if record.timestamp_ms >= end_ms]
    if later and later[0].timestamp_ms > horizon:
        later = later[:1] + [record for record in later[1:] if record.offset >= lower]
    if any(record.offset < part.stable_end and record.timestamp_ms <= horizon for record in later):
        return False
    is_over_there = bool(later) and later[0].timestamp_ms <= horizon
    return part.stable_end < (later[0].offset if is_over_there else len(part.stamps_ms))
