"""The chain of a stream's epochs, as pure decisions without I/O; and what the next one reads: ranges of offsets, each within one
interval of arrival.

An epoch reads one range of offsets of each partition, in parts: each of one hour of arrival. The ledger has its parts in the
transaction that makes its counts public, and the rule is that a part begins where the last one of its partition ended: a gap or
an overlap cannot be committed. A part ends at the boundary of its hour at the latest, so a frozen window is a whole number of
parts, and its fingerprint is their sum.

The boundary that is foreseen is the one that freezing finds later, except where freezing finds no record and takes the log's end,
or passes over a stamp from the future. The ledger's boundary is always the authority: parts that turn out to be of other hours
are named by `repair_of`, and have to be read once more.

An hour is the window of the pipeline in which records arrived, by its start, whatever its length.

A window that is frozen later has to be a whole number of parts, so a part ends where its interval does. The ledger's boundaries
are the authority. Between them and beyond them the planner foresees what freezing will decide, by freezing's own rule
(logbus.windows.boundaries): an interval begins with the first record that is stamped in it or later, but not in the future. As
long as there is none it has not begun. Where freezing decides otherwise in the end, the driver repairs it.

`walk` decides and asks no broker: it is a generator that yields what it has to know and is sent the answer. So the partitions
walk in step, and what all of them ask is one request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from operator import attrgetter

from logbus import errors, model
from logbus.fingerprint import MODULUS, as_text
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog
from logbus.windows import boundaries


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EpochPart:
    """What an epoch read of one partition and hour of arrival: `read` records, whose hashes add up to `fingerprint`. `untimed`
    are rows without an event time, which no row of the stream counts."""

    partition: int
    start_offset: int
    end_offset: int  # exclusive
    epoch: int
    hour: datetime
    read: int
    fingerprint: int
    filtered: int = 0
    dead_lettered: int = 0
    untimed: int = 0

    def __post_init__(self) -> None:
        if not self.start_offset < self.end_offset:
            raise ValueError(f"a part has at least one offset; got {self}")

    def __str__(self) -> str:
        return f"epoch {self.epoch} partition {self.partition} [{self.start_offset}, {self.end_offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenHour:
    """A window of the pipeline, by partition the offsets that are its. It may lack a partition that was added after it."""

    interval: model.Interval
    ranges: Mapping[int, model.OffsetRange]


Positions = Mapping[int, int]  # by partition the end of what is committed


def positions_after(positions: Positions, parts: Iterable[EpochPart]) -> dict[int, int]:
    """Where the chain ends with these parts. `ChainBroken` unless each begins where its partition's chain ends. Called under the
    stream's lock."""
    ends = dict(positions)
    for part in sorted(parts):
        if part.partition not in ends:
            raise errors.ChainBroken(f"{part} is of a partition that the stream does not read")
        if (end := ends[part.partition]) != part.start_offset:
            kind = "leaves a gap" if part.start_offset > end else "reads offsets again"
            raise errors.ChainBroken(f"{part} {kind}: what is committed of the partition ends at {end}")
        ends[part.partition] = part.end_offset
    return ends


def misplaced_hours(parts: Iterable[EpochPart], frozen: Sequence[FrozenHour]) -> set[datetime]:
    """The hours that have parts, or should have parts, that are in another one or in two of them by what is frozen."""
    hours: set[datetime] = set()
    for part in parts:
        for window in frozen:
            expected, is_its = window.ranges.get(part.partition), part.hour == window.interval.start
            overlaps = (
                expected is not None and part.start_offset < expected.end_offset and part.end_offset > expected.start_offset
            )
            is_inside = (
                expected is not None and expected.start_offset <= part.start_offset and part.end_offset <= expected.end_offset
            )
            if overlaps != is_its or (overlaps and not is_inside):
                hours |= {part.hour, window.interval.start}
    return hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What has to be read again, by partition, because freezing decided otherwise: all parts of these hours. `frozen` is by which
    windows it has to be read."""

    hours: frozenset[datetime]
    ranges: Mapping[int, tuple[int, int]]
    frozen: Sequence[FrozenHour]


def repair_of(parts: Sequence[EpochPart], frozen: Sequence[FrozenHour]) -> Repair | None:
    """None if every part is of the hour that it is frozen to be of."""
    hours = misplaced_hours(parts, frozen)
    while hours:
        ranges = spans_of(part for part in parts if part.hour in hours)
        # What lies between two parts that are read again is read again with them, and then so is the rest of its hour. Hours may
        # be far apart: windows are frozen in any order, and what was foreseen before may be of a later one than what came after.
        within = {
            part.hour
            for part in parts
            if part.partition in ranges
            and part.start_offset < ranges[part.partition][1]
            and part.end_offset > ranges[part.partition][0]
        }
        if within <= hours:
            return Repair(hours=frozenset(hours), ranges=ranges, frozen=frozen)
        hours |= within
    return None


def spans_of(parts: Iterable[EpochPart]) -> dict[int, tuple[int, int]]:
    """By partition from where to where the parts reach."""
    spans: dict[int, tuple[int, int]] = {}
    for part in parts:
        start, end = spans.get(part.partition, (part.start_offset, part.end_offset))
        spans[part.partition] = (min(start, part.start_offset), max(end, part.end_offset))
    return spans


def refuse_another_span(repair: Repair, parts: Sequence[EpochPart]) -> None:
    """`ChainBroken` unless the parts are what the repair is of, without a gap and nothing twice."""
    starts = {partition: start for partition, (start, _) in repair.ranges.items()}
    if (ends := positions_after(starts, parts)) != {partition: end for partition, (_, end) in repair.ranges.items()}:
        raise errors.ChainBroken(f"what was read again ends at {ends}, and not where it has to: {dict(repair.ranges)}")


def merged(parts: Iterable[EpochPart]) -> list[EpochPart]:
    """One for each partition, of parts that tile a range of it."""
    by_partition = groupby(sorted(parts), attrgetter("partition"))
    whole = []
    for partition, group in by_partition:
        tiles = list(group)
        whole.append(
            EpochPart(
                partition=partition,
                start_offset=tiles[0].start_offset,
                end_offset=tiles[-1].end_offset,
                epoch=max(tile.epoch for tile in tiles),
                hour=tiles[0].hour,
                read=sum(tile.read for tile in tiles),
                fingerprint=sum(tile.fingerprint for tile in tiles) % MODULUS,
                filtered=sum(tile.filtered for tile in tiles),
                dead_lettered=sum(tile.dead_lettered for tile in tiles),
                untimed=sum(tile.untimed for tile in tiles),
            )
        )
    return whole


# The proof that a stream has read what the load of a window has: the parts tile its ranges, and their counts and hashes are the
# load's.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPart:
    """What the load of the window read of a partition, as its attempt stored it."""

    read: int
    fingerprint: str


def tiling_problems(ranges: Iterable[model.OffsetRange], parts: Iterable[EpochPart]) -> list[str]:
    """Why the parts are not exactly these ranges; none if they are."""
    problems = []
    by_partition = {key: sorted(group) for key, group in groupby(sorted(parts), attrgetter("partition"))}
    for expected in ranges:
        tiles = by_partition.pop(expected.partition, [])
        problems += _span_problems(expected, tiles)
    return problems + [f"{tiles[0]} is of a partition that the window does not have" for tiles in by_partition.values()]


def _span_problems(expected: model.OffsetRange, tiles: Sequence[EpochPart]) -> list[str]:
    if expected.start_offset == expected.end_offset:
        return [f"{tile}: the window has nothing there" for tile in tiles]
    if not tiles:
        return [f"{expected}: no epoch has read it"] if expected.count else []
    problems = []
    # What was lost before the load may have been lost before the stream as well.
    if tiles[0].start_offset not in (expected.start_offset, expected.readable_from):
        problems.append(f"{expected} begins at {expected.start_offset}, its first part is {tiles[0]}")
    for left, right in pairwise(tiles):
        if left.end_offset != right.start_offset:
            problems.append(f"{left} and {right} do not meet")
    if tiles[-1].end_offset != expected.end_offset:
        problems.append(f"{expected} ends at {expected.end_offset}, its last part is {tiles[-1]}")
    return problems


def reading_problems(loaded: Mapping[int, LoadedPart], parts: Iterable[EpochPart]) -> list[str]:
    """Where a stream has read other records than the load."""
    read: dict[int, int] = dict.fromkeys(loaded, 0)
    hashes: dict[int, int] = dict.fromkeys(loaded, 0)
    for part in parts:
        read[part.partition] = read.get(part.partition, 0) + part.read
        hashes[part.partition] = (hashes.get(part.partition, 0) + part.fingerprint) % MODULUS
    problems = []
    for partition in sorted(read):
        of_load = loaded.get(partition, LoadedPart(read=0, fingerprint=as_text(0)))
        if read[partition] != of_load.read:
            problems.append(f"partition {partition}: the stream read {read[partition]:,} records, the load {of_load.read:,}")
        elif as_text(hashes[partition]) != of_load.fingerprint:
            problems.append(f"partition {partition}: the stream read {read[partition]:,} records, and not those of the load")
    return problems


# What the next epoch reads: ranges of offsets, each within one interval of arrival.


# Of one partition in one epoch: each costs a question to the broker and a row of the ledger. A backlog of quiet intervals takes
# more epochs instead.
PARTS_MAX = 100

Boundary = tuple[datetime, int]  # an instant, and the first offset from then on


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlannedPart:
    """The offsets [start_offset, end_offset) of a partition, which arrived in the interval that begins at `hour`."""

    partition: int
    start_offset: int
    end_offset: int
    hour: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryQuestion:
    """Which record is the first that is stamped `at` or later, and not in the future? If the index cannot tell, the records of
    these offsets are read."""

    partition: int
    at: datetime
    start_offset: int
    end_offset: int


Walk = Generator[BoundaryQuestion, OffsetAndTimestamp | None, list[PlannedPart]]
NOTHING_KNOWN: Mapping[int, datetime] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a partition is. `boundaries` are the frozen ones in order of time, from the last one at or before the position on;
    none if nothing is frozen there. `hour` is that of what was committed last, where it is known."""

    position: int
    boundaries: Sequence[Boundary] = ()
    hour: datetime | None = None


def reached_in(
    frozen: Sequence[FrozenHour], positions: Mapping[int, int], hours: Mapping[int, datetime] = NOTHING_KNOWN
) -> dict[int, Reached]:
    """By partition, with the boundaries of these windows. Windows that are frozen without a partition have none of its records:
    it begins after them."""
    newest_end = [(frozen[-1].interval.end, 0)] if frozen else []
    reached = {}
    for partition, position in positions.items():
        ranges = [(window.interval, window.ranges[partition]) for window in frozen if partition in window.ranges]
        boundaries_of = sorted(
            {
                boundary
                for interval, part in ranges
                for boundary in ((interval.start, part.start_offset), (interval.end, part.end_offset))
            }
            or newest_end
        )
        first = max((number for number, (_, offset) in enumerate(boundaries_of) if offset <= position), default=0)
        reached[partition] = Reached(position=position, boundaries=boundaries_of[first:], hour=hours.get(partition))
    return reached


def walk(partition: int, reached: Reached, end: int, log_end: int, pipeline: model.Pipeline, parts_max: int = PARTS_MAX) -> Walk:
    """The parts of [position, end), at most so many. None if it is not known where they belong: nothing is frozen, and no record
    has a usable stamp."""
    position, parts, grid, starts_at = reached.position, list[PlannedPart](), pipeline.grid, pipeline.starts_at
    if position >= end:
        return parts
    later, at = list(reached.boundaries), None
    searched_to = position  # up to here no interval after `at` begins
    if later and later[0][1] <= position:
        at, offset = later.pop(0)
        searched_to = position if reached.hour is not None else offset
    elif reached.hour is None:
        # Records without a usable stamp at the head of the log go with the first one that has one.
        first = yield BoundaryQuestion(partition=partition, at=model.EPOCH, start_offset=0, end_offset=log_end)
        if first is not None:
            at, searched_to = grid.floor(model.instant(first.timestamp_ms)), first.offset
    at = max((instant for instant in (at, reached.hour, at and starts_at) if instant is not None), default=None)
    while at is not None and position < end and len(parts) < parts_max:
        while later and later[0][0] <= at:
            later.pop(0)
        following, frozen = later[0] if later else (None, end)
        next_at = grid.after(grid.floor(at))
        boundary = frozen
        if following is not None and following <= next_at:
            next_at = following
        else:
            first = yield BoundaryQuestion(partition=partition, at=next_at, start_offset=searched_to, end_offset=min(frozen, end))
            if first is not None and first.offset < frozen:
                searched_to = max(searched_to, first.offset)
                boundary, hour = first.offset, grid.floor(model.instant(first.timestamp_ms))
                next_at = max(next_at, hour) if following is None or hour < following else next_at
            elif following is not None:
                next_at = following
        stop = min(boundary, end)
        if stop > position:
            parts.append(PlannedPart(partition=partition, start_offset=position, end_offset=stop, hour=at))
            position = stop
        at = next_at
    return parts


def limited(positions: Mapping[int, int], ends: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """Up to where an epoch may read each partition: at most so many offsets of all of them together, of each in proportion to
    what it has, as Spark's `maxOffsetsPerTrigger`."""
    waiting = {partition: max(0, end - positions.get(partition, 0)) for partition, end in ends.items()}
    total = sum(waiting.values())
    if total <= offsets_max:
        return dict(ends)
    return {
        partition: positions.get(partition, 0) + min(size, max(1, size * offsets_max // total))
        for partition, size in waiting.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlanner:
    """Of one stream. `offsets_max` are those of an epoch, `parts_max` the parts that it has of each partition."""

    pipeline: model.Pipeline
    log: OffsetLog
    now: Callable[[], datetime]
    offsets_max: int
    parts_max: int = PARTS_MAX

    def plan(self, reached: Mapping[int, Reached], ends: Mapping[int, int]) -> list[PlannedPart]:
        """The parts of the next epoch, in the order of partitions and offsets; none if there is nothing to read.

        `ends` were asked for before: a record that was appended since is not read, whatever the broker says of its time.
        """
        self.refuse_if_shorter(reached, ends)
        stops = limited({partition: state.position for partition, state in reached.items()}, ends, self.offsets_max)
        walks = {
            partition: walk(partition, state, stops[partition], ends[partition], self.pipeline, self.parts_max)
            for partition, state in reached.items()
        }
        answers: dict[int, OffsetAndTimestamp | None] = dict.fromkeys(walks)
        parts: list[PlannedPart] = []
        while answers:
            questions: list[BoundaryQuestion] = []
            for partition, answer in answers.items():
                try:
                    questions.append(walks[partition].send(answer))
                except StopIteration as over:
                    parts += over.value
            answers = self.answers(questions)
        return sorted(parts)

    def refuse_if_shorter(self, reached: Mapping[int, Reached], ends: Mapping[int, int]) -> None:
        for partition, state in reached.items():
            if ends[partition] < state.position:
                raise errors.LogChanged(
                    f"{self.pipeline.topic}-{partition} ends at {ends[partition]}, and the stream has read up to "
                    f"{state.position}: its broker has lost records, or this is another log. Once `logbus pipeline rebase` has "
                    "settled that for the pipeline, `logbus stream reset` begins at one of its frozen hours again"
                )

    def answers(self, questions: Iterable[BoundaryQuestion]) -> dict[int, OffsetAndTimestamp | None]:
        by_partition = {question.partition: question for question in questions}
        stamps = {model.milliseconds(question.at) for question in by_partition.values()}
        if not by_partition:
            return {}
        by_stamp = self.log.first_at_or_after_each(self.pipeline.topic, sorted(by_partition), sorted(stamps))
        horizon = boundaries.horizon_ms(self.now(), boundaries.max_ahead(self.pipeline))
        answers: dict[int, OffsetAndTimestamp | None] = {}
        for partition, question in by_partition.items():
            at_ms = model.milliseconds(question.at)
            first = by_stamp[at_ms].get(partition)
            if boundaries.needs_scan(first, horizon):
                start = max(question.start_offset, self.log.start_offsets(self.pipeline.topic, [partition])[partition])
                records = self.log.records(self.pipeline.topic, partition, start, question.end_offset)
                first = next((record for record in records if boundaries.is_evidence(record, at_ms, horizon)), None)
            answers[partition] = first
        return answers
