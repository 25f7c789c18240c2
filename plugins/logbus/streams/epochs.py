"""The chain of a stream's epochs: pure decisions, no I/O.

An epoch reads one range of offsets of each partition. The ledger has its parts in the transaction that makes its counts public,
and the rule is that a part begins where the last one of its partition ended: a gap or an overlap cannot be committed, whatever
a checkpoint says. A part ends at the boundary of the hour at the latest, so a frozen window is a whole number of parts, and its
fingerprint is their sum.

The boundary that is foreseen is the one that freezing finds later, except where freezing finds no record and takes the log's end,
or passes over a stamp from the future. The ledger's boundary is always the authority: a part that turns out to straddle it is
named by `straddling`, and has to be read once more and split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

from logbus import errors, model
from logbus.fingerprint import MODULUS, as_text


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EpochPart:
    """What an epoch read of one partition: `read` records, whose hashes add up to `fingerprint`."""

    partition: int
    start_offset: int
    end_offset: int  # exclusive
    epoch: int
    read: int
    fingerprint: int

    def __post_init__(self) -> None:
        if not self.start_offset < self.end_offset:
            raise ValueError(f"a part has at least one offset; got {self}")

    def __str__(self) -> str:
        return f"epoch {self.epoch} partition {self.partition} [{self.start_offset}, {self.end_offset})"


Positions = Mapping[int, int]  # by partition the end of what is committed


def next_ranges(
    positions: Positions, log_ends: Mapping[int, int], boundaries: Mapping[int, int], offsets_max: int
) -> dict[int, tuple[int, int]]:
    """The ranges of the next epoch: from the committed end on, up to the log's end, at most so many offsets of each partition,
    and not beyond the first offset of the next hour, where that is known. A partition without anything new is left out."""
    ranges = {}
    for partition, start in positions.items():
        ends = [log_ends.get(partition, start), start + offsets_max]
        boundary = boundaries.get(partition)
        if boundary is not None and boundary > start:
            ends.append(boundary)
        if min(ends) > start:
            ranges[partition] = (start, min(ends))
    return ranges


def refuse_broken(positions: Positions, parts: Iterable[EpochPart]) -> None:
    """`ChainBroken` unless each part begins where its partition's chain ends. Called under the stream's lock."""
    for part in parts:
        if part.partition not in positions:
            raise errors.ChainBroken(f"{part} is of a partition that the stream does not read")
        if (end := positions[part.partition]) != part.start_offset:
            kind = "leaves a gap" if part.start_offset > end else "reads offsets again"
            raise errors.ChainBroken(f"{part} {kind}: what is committed of the partition ends at {end}")


def is_repeated(committed: Iterable[EpochPart], parts: Iterable[EpochPart]) -> bool:
    """Whether this epoch is in the ledger already, exactly as it is: its driver died after the commit and before it knew."""
    return sorted(committed) == sorted(parts)


def positions_after(positions: Positions, parts: Iterable[EpochPart]) -> dict[int, int]:
    return {**positions, **{part.partition: part.end_offset for part in parts}}


def straddling(parts: Iterable[EpochPart], boundaries: Mapping[int, int]) -> list[EpochPart]:
    """Those that a frozen boundary cuts in two."""
    return [part for part in parts if part.start_offset < boundaries.get(part.partition, part.start_offset) < part.end_offset]


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
        return [f"{expected}: no epoch has read it"]
    problems = []
    if tiles[0].start_offset != expected.start_offset:
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
