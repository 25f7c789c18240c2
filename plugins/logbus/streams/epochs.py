"""The chain of a stream's epochs: pure decisions, no I/O.

An epoch reads one range of offsets of each partition, in parts: each of one hour of arrival. The ledger has its parts in the
transaction that makes its counts public, and the rule is that a part begins where the last one of its partition ended: a gap or
an overlap cannot be committed. A part ends at the boundary of its hour at the latest, so a frozen window is a whole number of
parts, and its fingerprint is their sum.

The boundary that is foreseen is the one that freezing finds later, except where freezing finds no record and takes the log's end,
or passes over a stamp from the future. The ledger's boundary is always the authority: parts that turn out to be of other hours
are named by `repair_of`, and have to be read once more.

An hour is the window of the pipeline in which records arrived, by its start, whatever its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from operator import attrgetter

from logbus import errors, model
from logbus.fingerprint import MODULUS, as_text


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
