"""Whatever is lost, repeated or made up, committed epochs tile the log, and an hour is a whole number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.errors import ChainBroken
from logbus.fingerprint import MODULUS, as_text
from logbus.model import OffsetRange
from logbus.streams.epochs import (
    EpochPart,
    LoadedPart,
    is_repeated,
    next_ranges,
    positions_after,
    reading_problems,
    refuse_broken,
    straddling,
    tiling_problems,
)

HOURS = st.lists(st.integers(0, 30), min_size=1, max_size=6)  # how many records a partition gets in each hour
LOGS = st.lists(HOURS, min_size=1, max_size=3).filter(lambda log: len({len(hours) for hours in log}) == 1)
HASHES = [pow(7, number, MODULUS) for number in range(400)]


def part(partition: int, start: int, end: int, epoch: int) -> EpochPart:
    hashes = sum(HASHES[offset] * (partition + 1) for offset in range(start, end)) % MODULUS
    return EpochPart(partition=partition, start_offset=start, end_offset=end, epoch=epoch, read=end - start, fingerprint=hashes)


def boundaries_of(log: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """By hour where it ends, in each partition."""
    ends = [list(accumulate(hours)) for hours in log]
    return [{partition: ends[partition][hour] for partition in range(len(log))} for hour in range(len(log[0]))]


def stream(log: Sequence[Sequence[int]], choices: st.DataObject) -> list[EpochPart]:
    """A driver that reads as the log grows, and dies before its commit, or after it and before it knows."""
    boundaries, committed = boundaries_of(log), list[EpochPart]()
    positions = dict.fromkeys(range(len(log)), 0)
    for hour, ends in enumerate(boundaries):
        epoch = 0
        while positions != ends:
            grown = {
                partition: choices.draw(st.integers(positions[partition], boundaries[-1][partition])) for partition in positions
            }
            # Records of later hours are there; the boundary of this one is known.
            ranges = next_ranges(positions, grown, ends, choices.draw(st.integers(1, 12)))
            parts = [part(number, *span, epoch) for number, span in ranges.items() if positions[number] < ends[number]]
            if not parts:
                continue
            epoch += 1
            fate = choices.draw(st.sampled_from(["commits", "dies before", "dies after"]))
            if fate != "dies before":
                refuse_broken(positions, parts)
                positions = positions_after(positions, parts)
                committed += parts
            if fate == "dies after":  # and comes again with the same epoch
                assert is_repeated(parts, reversed(parts))
                with pytest.raises(ChainBroken, match="reads offsets again"):
                    refuse_broken(positions, parts)
        assert straddling(committed, boundaries[hour]) == []
    return committed


@given(log=LOGS, choices=st.data())
def test_committed_epochs_tile_each_hour_and_their_fingerprints_add_up(log: list[list[int]], choices: st.DataObject) -> None:
    committed, starts = stream(log, choices), dict.fromkeys(range(len(log)), 0)
    for ends in boundaries_of(log):
        ranges = [
            OffsetRange(topic="t", partition=number, start_offset=starts[number], end_offset=ends[number]) for number in ends
        ]
        inside = [tile for tile in committed if starts[tile.partition] <= tile.start_offset < ends[tile.partition]]
        assert tiling_problems(ranges, inside) == []
        whole = {span.partition: (span.start_offset, span.end_offset) for span in ranges}
        loaded = {
            number: LoadedPart(
                read=end - start,
                fingerprint=as_text(sum(HASHES[offset] * (number + 1) for offset in range(start, end)) % MODULUS),
            )
            for number, (start, end) in whole.items()
        }
        assert reading_problems(loaded, inside) == []
        starts = ends


@given(
    spans=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    damage=st.sampled_from(["loses", "doubles", "moves"]),
    choices=st.data(),
)
def test_a_part_that_is_lost_doubled_or_moved_is_named(spans: list[int], damage: str, choices: st.DataObject) -> None:
    ends = list(accumulate(spans))
    tiles = [part(0, end - span, end, number) for number, (span, end) in enumerate(zip(spans, ends, strict=True))]
    expected = [OffsetRange(topic="t", partition=0, start_offset=0, end_offset=ends[-1])]
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
        refuse_broken({0: 5}, [part(0, start, 9, 1)])
    with pytest.raises(ChainBroken, match="does not read"):
        refuse_broken({1: 5}, [part(0, 5, 9, 1)])


def test_what_freezing_decided_otherwise_is_found() -> None:
    assert straddling([part(0, 0, 5, 1), part(0, 5, 9, 2)], {0: 7}) == [part(0, 5, 9, 2)]
