"""What was produced, where an hour begins, and what each frozen hour holds: computed a second time, record by record.

None of this is the product's code. Records are kept as they were sent, by partition and offset; what happens to the log happens
to them; the boundary of an hour is found by looking at every one of them.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

HOUR = timedelta(hours=1)
AHEAD = timedelta(hours=1)  # how far ahead of the clock a timestamp is accepted
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[int, int]  # partition, offset
Ranges = dict[int, tuple[int, int]]  # by partition, the first offset and the one after the last
Row = tuple[Any, ...]  # what a reader sees of one record: where it is kept, its timestamp, its values

CUT = "cut"
OUT_OF_SIGHT = "cut where nothing tells"  # after every boundary, or retention has since taken the record before the last


class Record(NamedTuple):
    stamp_ms: int
    value: bytes

    @property
    def at(self) -> datetime:
        return EPOCH + timedelta(milliseconds=self.stamp_ms)


def ms(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(milliseconds=1)


def parsed(record: Record, parse: str) -> Row:
    """What the table, or the dead letters, must hold for a record."""
    stamp = None if record.stamp_ms < 0 else record.stamp_ms
    try:
        line = record.value.decode()
        return ("row", stamp, line, None) if parse == "lines" else ("row", stamp, None, json.loads(line)["name"])
    except ValueError:
        return ("dead", stamp, record.value)


@dataclass
class Partition:
    """A partition's records by offset, as now in the log; None is an offset without a record. `gone` are those compacted away."""

    records: list[Record | None] = field(default_factory=list)
    start: int = 0
    open_from: int | None = None  # the first offset of an open transaction
    gone: set[int] = field(default_factory=set)

    def readable(self) -> Iterator[tuple[int, Record]]:
        return ((at, found) for at, found in enumerate(self.records) if found is not None and at >= self.start)


Try = tuple[int, str | None]  # an attempt's number and its random key: a restored ledger reuses numbers


@dataclass
class Window:
    """A frozen hour: `held` are its records as they were then, `rows` what the table must hold since the last load."""

    start: datetime
    end: datetime
    frozen: int  # when, in events
    chain: int
    ranges: Ranges
    held: dict[Place, Record]
    newest: int = 0
    loaded: set[Try] = field(default_factory=set)
    parses: dict[Try, str] = field(default_factory=dict)
    rows: dict[Place, Row] | None = None


class Lost(NamedTuple):
    """An acknowledged record that was gone before any window held it: when in events, and why. By the boundaries frozen until
    then it belonged to no hour that ends at `behind` or earlier, whatever its timestamp."""

    record: Record
    when: int
    why: str
    behind: datetime | None
    partition: int

    def may_be_of(self, window: Window) -> bool:
        """Whether the record would have been in this window, had it existed when that was frozen."""
        is_of = window.start <= self.record.at < window.end
        return self.when < window.frozen and is_of and (self.behind is None or window.start >= self.behind)


@dataclass
class Chain:
    """Where windows begin in each partition, and the boundaries already fixed."""

    anchors: dict[int, tuple[datetime | None, int]] = field(default_factory=dict)
    bounds: dict[int, dict[datetime, int]] = field(default_factory=dict)


@dataclass
class Known:
    """What is rolled back with the ledger when an older copy of it is restored."""

    windows: dict[datetime, Window] = field(default_factory=dict)
    chains: dict[int, Chain] = field(default_factory=dict)
    chain: int = 0


class Truth:
    """One pipeline's records and hours, which are windows of this length."""

    def __init__(self, length: timedelta = HOUR) -> None:
        self.length = length
        self.parts: list[Partition] = []
        self.known = Known()
        self.log = 0  # how often the topic was recreated with a new id
        self.lost: list[Lost] = []
        self.sent: dict[bytes, int] = {}  # when, by value
        self.events = itertools.count()
        self.forgotten: set[datetime] = set()  # hours loaded after the ledger's restored copy was made

    # What happens to the log

    def registered(self, partitions: int) -> None:
        self.parts = [Partition() for _ in range(partitions)]
        self.known.chains[0] = Chain(dict.fromkeys(range(partitions), (None, 0)), {part: {} for part in range(partitions)})

    def produced(self, partition: int, records: Sequence[Record | None]) -> None:
        self.parts[partition].records += records
        self.sent |= {record.value: next(self.events) for record in records if record is not None}

    def widened(self) -> None:
        self.parts.append(Partition())

    def cut(self, partition: int, offset: int) -> None:
        """Records from `offset` on are gone. The ledger can detect it only if it has frozen a boundary after that offset."""
        part = self.parts[partition]
        self.lose(partition, range(offset, len(part.records)), CUT if offset < self.reached(partition) else OUT_OF_SIGHT)
        del part.records[offset:]
        part.start, part.open_from = min(part.start, offset), None
        part.gone = {at for at in part.gone if at < offset}

    def reached(self, partition: int) -> int:
        """The last boundary that the ledger has in the current log."""
        return max(self.known.chains.get(self.log, Chain()).bounds.get(partition, {}).values(), default=0)

    def deleted(self, partition: int, offset: int) -> None:
        """If retention deletes the record before the last boundary, nothing reveals an earlier cut any longer."""
        part = self.parts[partition]
        self.lose(partition, range(part.start, offset), "retention")
        part.start = max(part.start, offset)
        if part.start >= self.reached(partition):
            self.lost = [
                one._replace(why=OUT_OF_SIGHT) if (one.partition, one.why) == (partition, CUT) else one for one in self.lost
            ]

    def made_again(self, partitions: int) -> None:
        for partition, part in enumerate(self.parts):
            self.lose(partition, range(part.start, len(part.records)), "the topic was made again")
        self.parts, self.log = [Partition() for _ in range(partitions)], self.log + 1

    def lose(self, partition: int, offsets: Iterable[int], why: str) -> None:
        when = next(self.events)
        held = {place for window in self.known.windows.values() if window.chain == self.log for place in window.held}
        records, bounds = self.parts[partition].records, self.known.chains.get(self.log, Chain()).bounds.get(partition, {})
        for at in offsets:
            if (found := records[at]) is not None and (partition, at) not in held:
                behind = max((instant for instant, bound in bounds.items() if bound <= at), default=None)
                self.lost.append(Lost(found, when, why, behind, partition))

    def compacted(self, partition: int, offsets: Iterable[int]) -> None:
        for at in offsets:
            self.parts[partition].records[at] = None
            self.parts[partition].gone.add(at)

    def rebased(self) -> None:
        if self.known.chain != self.log:
            starts = {number: (self.last_end(), part.start) for number, part in enumerate(self.parts)}
            self.known.chains[self.log] = Chain(starts, {number: {} for number in starts})
            self.known.chain = self.log

    def save(self) -> Known:
        return copy.deepcopy(self.known)

    def restore(self, known: Known) -> None:
        """An older copy of the ledger is restored. The table stays as it is."""
        self.forgotten |= {start for start, window in known.windows.items() if window.loaded != self.known.windows[start].loaded}
        self.known = known

    # Where an hour begins

    @property
    def chain(self) -> Chain:
        return self.known.chains[self.known.chain]

    def last_end(self) -> datetime | None:
        return max((window.end for window in self.known.windows.values()), default=None)

    def new_window(self, start: datetime, ranges: Mapping[int, tuple[int, int]], now: datetime) -> Window:
        """The hour as it must be frozen now. It holds what is in the ranges that the product has chosen."""
        for partition in range(len(self.parts)):
            self.chain.anchors.setdefault(partition, (self.last_end(), 0))
            self.chain.bounds.setdefault(partition, {})
        expected = {number: self.span(number, start, now) for number in range(len(self.parts))}
        held = {place: found for place, found in self.records_of(ranges).items() if found is not None}
        return Window(start, start + self.length, next(self.events), self.known.chain, expected, held)

    def span(self, partition: int, start: datetime, now: datetime) -> tuple[int, int]:
        return self.boundary(partition, start, now), self.boundary(partition, start + self.length, now)

    def boundary(self, partition: int, at: datetime, now: datetime) -> int:
        """The first record from `at` on with an acceptable timestamp, between the boundaries already fixed."""
        bounds, (anchored_at, anchor) = self.chain.bounds[partition], self.chain.anchors[partition]
        if anchored_at is not None and anchored_at >= at:
            return anchor
        if at not in bounds:
            part, horizon = self.parts[partition], ms(now + AHEAD)
            below = [offset for when, offset in bounds.items() if when < at]
            above = [offset for when, offset in bounds.items() if when > at]
            end = len(part.records) if part.open_from is None else part.open_from
            believed = [place for place, found in part.readable() if ms(at) <= found.stamp_ms <= horizon]
            offset = min([*believed, end])
            if not below and not any(0 <= found.stamp_ms <= horizon for place, found in part.readable() if place < offset):
                offset = anchor  # leading records without a usable timestamp belong with those after them
            bounds[at] = min([max([offset, *below, anchor]), *above])
        return bounds[at]

    def ends_in_the_open(self, window: Window) -> bool:
        """Whether an hour was ended by an open transaction, and not by a record of a later hour."""
        for number, (_, end) in window.ranges.items():
            part = self.parts[number]
            if part.open_from == end < len(part.records):
                first = part.records[end]
                if first is None or first.at < window.end:
                    return True
        return False

    def records_of(self, ranges: Mapping[int, tuple[int, int]]) -> dict[Place, Record | None]:
        """What the log holds in these ranges; None if the log does not reach that far, or the record is gone."""
        found: dict[Place, Record | None] = {}
        for partition, (start, end) in ranges.items():
            records = self.parts[partition].records if partition < len(self.parts) else []
            found |= {(partition, at): records[at] if at < len(records) else None for at in range(start, end)}
        return found
