"""Whatever is lost, repeated or foreseen otherwise, committed epochs tile the log, and an hour is a whole number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.errors import ChainBroken
from logbus.fingerprint import MODULUS, as_text
from logbus.model import OffsetRange
from logbus.streams.epochs import (
    EpochPart,
    FrozenHour,
    LoadedPart,
    merged,
    misplaced_hours,
    positions_after,
    reading_problems,
    refuse_another_span,
    repair_of,
    spans_of,
    tiling_problems,
)

from tests.support.ledgers import at, hour

# By partition how many records it gets in each hour.
LOGS = st.integers(1, 4).flatmap(
    lambda hours: st.lists(st.lists(st.integers(0, 8), min_size=hours, max_size=hours), min_size=1, max_size=3)
)
FATES = ("commits", "dies before the commit", "comes again with the same epoch")
HASHES = [pow(7, number, MODULUS) for number in range(400)]


def fingerprint_of(partition: int, start: int, end: int) -> int:
    return sum(HASHES[offset] * (partition + 1) for offset in range(start, end)) % MODULUS


def part(partition: int, start: int, end: int, epoch: int, number: int = 0) -> EpochPart:
    """Of the hour of this number."""
    return EpochPart(
        partition=partition,
        start_offset=start,
        end_offset=end,
        epoch=epoch,
        hour=at(number),
        read=end - start,
        fingerprint=fingerprint_of(partition, start, end),
    )


def boundaries_of(log: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """By hour where it ends, in each partition."""
    ends = [list(accumulate(hours)) for hours in log]
    return [{partition: ends[partition][hour] for partition in range(len(log))} for hour in range(len(log[0]))]


def windows_of(log: Sequence[Sequence[int]]) -> list[FrozenHour]:
    """What is frozen in the end."""
    ends = [dict.fromkeys(range(len(log)), 0), *boundaries_of(log)]
    return [
        FrozenHour(
            interval=hour(number), ranges={partition: span(partition, start[partition], end[partition]) for partition in end}
        )
        for number, (start, end) in enumerate(pairwise(ends))
    ]


def span(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(topic="t", partition=partition, start_offset=start, end_offset=end)


def stream(log: Sequence[Sequence[int]], choices: st.DataObject) -> list[EpochPart]:
    """A driver that reads as the log grows, and dies before its commit, or after it and before it knows."""
    boundaries, committed = boundaries_of(log), list[EpochPart]()
    positions = dict.fromkeys(range(len(log)), 0)
    for number, ends in enumerate(boundaries):
        epoch = 0
        while positions != ends:
            reads = {
                partition: choices.draw(st.integers(0, 12)) for partition in positions if positions[partition] < ends[partition]
            }
            parts = [
                part(partition, positions[partition], min(ends[partition], positions[partition] + count), epoch, number)
                for partition, count in reads.items()
                if count
            ]
            if not parts:
                continue
            epoch += 1
            fate = choices.draw(st.sampled_from(FATES))
            if fate == "dies before the commit":
                continue
            positions, before = positions_after(positions, parts), positions
            committed += parts
            assert positions == {**before, **{partition: end for partition, (_, end) in spans_of(parts).items()}}
            if fate == "comes again with the same epoch":
                with pytest.raises(ChainBroken, match="reads offsets again"):
                    positions_after(positions, parts)
    return committed


@given(log=LOGS, choices=st.data())
def test_committed_epochs_tile_each_hour_and_their_fingerprints_add_up(log: list[list[int]], choices: st.DataObject) -> None:
    committed = stream(log, choices)
    assert misplaced_hours(committed, windows_of(log)) == set()
    assert repair_of(committed, windows_of(log)) is None
    for window in windows_of(log):
        inside = [tile for tile in committed if tile.hour == window.interval.start]
        loaded = {
            partition: LoadedPart(
                read=expected.count,
                fingerprint=as_text(fingerprint_of(partition, expected.start_offset, expected.end_offset)),
            )
            for partition, expected in window.ranges.items()
        }
        for tiles in (inside, merged(inside)):
            assert tiling_problems(window.ranges.values(), tiles) == []
            assert reading_problems(loaded, tiles) == []


@given(log=LOGS, foreseen=st.data(), choices=st.data())
def test_a_repair_reads_all_again_that_freezing_decided_otherwise_and_ends_where_the_chain_did(
    log: list[list[int]], foreseen: st.DataObject, choices: st.DataObject
) -> None:
    """Other boundaries were foreseen than are frozen: each partition's records lie in other hours of as many."""
    other = [foreseen.draw(partition_like(hours)) for hours in log]
    committed = stream(other, choices)
    repair = repair_of(committed, windows_of(log))
    if repair is None:
        assert misplaced_hours(committed, windows_of(log)) == set()
        return
    kept = [tile for tile in committed if tile.hour not in repair.hours]
    for tile in kept:
        start, end = repair.ranges.get(tile.partition, (0, 0))
        assert tile.end_offset <= start or tile.start_offset >= end
    again = [
        part(partition, max(start, its.start_offset), min(end, its.end_offset), 99, number)
        for number, window in enumerate(windows_of(log))
        for partition, its in window.ranges.items()
        for start, end in [repair.ranges.get(partition, (0, 0))]
        if max(start, its.start_offset) < min(end, its.end_offset)
    ]
    refuse_another_span(repair, again)
    assert repair_of([*kept, *again], windows_of(log)) is None
    for window in windows_of(log):
        tiles = [tile for tile in [*kept, *again] if tile.hour == window.interval.start]
        assert tiling_problems(window.ranges.values(), tiles) == []


def partition_like(hours: Sequence[int]) -> st.SearchStrategy[list[int]]:
    """As many records in as many hours, otherwise distributed."""
    total = sum(hours)
    cuts = st.lists(st.integers(0, total), min_size=len(hours) - 1, max_size=len(hours) - 1).map(sorted)
    return cuts.map(lambda ends: [end - start for start, end in pairwise([0, *ends, total])])


@given(
    spans=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    damage=st.sampled_from(["loses", "doubles", "moves"]),
    choices=st.data(),
)
def test_a_part_that_is_lost_doubled_or_moved_is_named(spans: list[int], damage: str, choices: st.DataObject) -> None:
    ends = list(accumulate(spans))
    tiles = [part(0, end - span, end, number) for number, (span, end) in enumerate(zip(spans, ends, strict=True))]
    expected = [span(0, 0, ends[-1])]
    assert tiling_problems(expected, tiles) == []
    victim = choices.draw(st.integers(0, len(tiles) - 1))
    if damage == "loses":
        tiles.pop(victim)
    elif damage == "doubles":
        tiles.append(tiles[victim])
    else:
        tiles[victim] = replace(
            tiles[victim], start_offset=tiles[victim].start_offset + 1, end_offset=tiles[victim].end_offset + 1
        )
    assert tiling_problems(expected, tiles) != []


@given(spans=st.lists(st.integers(1, 20), min_size=1, max_size=8), choices=st.data())
def test_a_record_more_or_another_one_is_named_with_its_partition(spans: list[int], choices: st.DataObject) -> None:
    ends = list(accumulate(spans))
    tiles = [part(0, end - span, end, number) for number, (span, end) in enumerate(zip(spans, ends, strict=True))]
    loaded = {0: LoadedPart(read=ends[-1], fingerprint=as_text(sum(tile.fingerprint for tile in tiles) % MODULUS))}
    victim = choices.draw(st.integers(0, len(tiles) - 1))
    for changed in (
        replace(tiles[victim], read=tiles[victim].read + 1),
        replace(tiles[victim], fingerprint=(tiles[victim].fingerprint + 1) % MODULUS),
    ):
        [problem] = reading_problems(loaded, [*tiles[:victim], changed, *tiles[victim + 1 :]])
        assert problem.startswith("partition 0: the stream read")
    assert "partition 1" in reading_problems(loaded, [*tiles, part(1, 0, 5, 9)])[0]


@pytest.mark.parametrize(("start", "message"), [(4, "reads offsets again"), (6, "leaves a gap")])
def test_a_part_that_does_not_begin_where_the_chain_ends_is_refused(start: int, message: str) -> None:
    with pytest.raises(ChainBroken, match=message):
        positions_after({0: 5}, [part(0, start, 9, 1)])
    with pytest.raises(ChainBroken, match="does not read"):
        positions_after({1: 5}, [part(0, 5, 9, 1)])
    with pytest.raises(ChainBroken, match="reads offsets again"):
        positions_after({0: 5}, [part(0, 5, 9, 1), part(0, 8, 9, 1)])
    assert positions_after({0: 5, 1: 3}, [part(0, 7, 9, 1), part(0, 5, 7, 1)]) == {0: 9, 1: 3}


def frozen(number: int, *ranges: tuple[int, int]) -> FrozenHour:
    return FrozenHour(interval=hour(number), ranges={partition: span(partition, *its) for partition, its in enumerate(ranges)})


@pytest.mark.parametrize(
    ("parts", "hours"),
    [
        ([part(0, 0, 7, 1, 0), part(0, 7, 9, 2, 1)], set()),
        ([part(0, 0, 5, 1, 0), part(0, 5, 9, 2, 0)], {0, 1}),  # one that the boundary cuts in two
        ([part(0, 0, 7, 1, 1)], {0, 1}),  # of the next hour
        ([part(0, 7, 9, 1, 0)], {0, 1}),  # of the one before
        ([part(0, 9, 12, 1, 2)], set()),  # after all that is frozen
        ([part(0, 9, 12, 1, 1)], {1}),  # of an hour that has ended
        ([part(1, 0, 5, 1, 1)], {1}),  # of a partition that the window does not have
    ],
)
def test_what_freezing_decided_otherwise_is_found(parts: list[EpochPart], hours: set[int]) -> None:
    assert misplaced_hours(parts, [frozen(0, (0, 7)), frozen(1, (7, 9))]) == {at(number) for number in hours}


def test_hours_that_are_frozen_in_another_order_are_repaired_without_those_between() -> None:
    parts = [part(0, 0, 5, 1, 0), part(0, 5, 9, 2, 3), part(0, 9, 12, 3, 2)]
    repair = repair_of(parts, [frozen(0, (0, 5)), frozen(1, (5, 9)), frozen(2, (9, 12))])
    assert repair is not None
    assert (repair.hours, repair.ranges) == ({at(1), at(3)}, {0: (5, 9)})
