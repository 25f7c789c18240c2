from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from broker.storage.offset_index import OffsetIndex


def test_entries_have_the_bytes_that_apache_kafka_writes() -> None:
    index = OffsetIndex()
    index.append(9, 4_100)
    index.append(2**31 - 1, 2**31)
    assert bytes(index.data) == bytes.fromhex("00000009 00001004 7fffffff 80000000")
    assert OffsetIndex(bytes(index.data)).entry(1) == (2**31 - 1, 2**31)


@pytest.mark.parametrize("kind", ["even", "dense", "uneven"])
def test_floor_finds_what_looking_at_every_entry_finds(kind: str) -> None:
    """It guesses an entry's position from its offset; offsets may be distributed in any way."""
    chance = random.Random(kind)
    for _ in range(60):
        index, offsets = OffsetIndex(), [chance.choice((0, 5, 100_000))]
        while len(offsets) < 40:
            step = {"even": 75, "dense": chance.randrange(2), "uneven": chance.randrange(1, 1 << chance.randrange(1, 26))}[kind]
            offsets.append(offsets[-1] + step)
        for number, offset in enumerate(offsets):
            index.append(offset, number * 10)
        for offset in {-1, 0, offsets[-1] + 1, *offsets, *(one - 1 for one in offsets), *(one + 1 for one in offsets)}:
            found = bisect_right(offsets, offset)
            assert index.floor(offset) == (index.entry(found - 1) if found else None)
