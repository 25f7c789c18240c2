"""A fetch that asks for many bytes at least (fetch.min.bytes) waits only while waiting can enlarge its answer: with the fast path
and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config.settings import LogConfig
from tests.support.batches import NOW_MS, plain_batch
from tests.support.two_fetch_paths import PLENTY, fetch_frame
from tests.support.two_paths import Rivals, produce_frame

WRITER, READER = 1, 2
SEGMENT_BYTES = 6_000
BATCH = bytes(plain_batch(1, timestamp=NOW_MS, value=b"x" * 900))
FETCH_BYTES_MAX = 10_000  # the broker's own limit
BATCHES = 18  # three segments of six


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[Rivals]:
    log = replace(LogConfig(), segment_bytes=SEGMENT_BYTES)
    rivals = Rivals(tmp_path, log=log, fetch_bytes_max=FETCH_BYTES_MAX)
    yield rivals
    rivals.close()


def write(rivals: Rivals, count: int, index: int = 0) -> None:
    for _ in range(count):
        rivals.feed(WRITER, produce_frame(9, 1, [(b"plain", [(index, BATCH)])]))
        rivals.turn()
    rivals.do(lambda harness: harness.flush())


def is_answered(rivals: Rivals, *rows: tuple[int, int, int], **settings: Any) -> bool:
    """Whether both sides answer at once. `rows`: partition, offset, maximum bytes."""
    asked = [(index, -1, offset, size) for index, offset, size in rows]
    frame = fetch_frame(11, 7, [(b"plain", asked)], lambda topic: b"", wait_ms=500, **settings)
    # The fast path learns from a first request, which is over before the second.
    for _ in range(2):
        before = {side: len(side.sockets[READER].sent) if READER in side.sockets else 0 for side in rivals.sides}
        rivals.feed(READER, frame)
        rivals.turn()
        seen = {len(side.sockets[READER].sent) > before[side] for side in rivals.sides}
        rivals.do(lambda harness: harness.clock.advance_ms(500))
        rivals.turn()
    rivals.compare()
    assert rivals.on.fetches_taken, "the fast path has taken the second"
    (answered,) = seen
    return answered


def test_a_reader_of_an_older_segment_does_not_wait_for_more_than_it_has(rivals: Rivals) -> None:
    write(rivals, BATCHES)
    assert len(rivals.off.engine.partitions.get("plain", 0).log.segments) == 3
    assert is_answered(rivals, (0, 5, PLENTY), bytes_min=8_000)
    assert not is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)  # the newest segment: more may come


def test_the_end_of_a_sealed_segment_is_waited_at_if_nothing_visible_follows(rivals: Rivals) -> None:
    write(rivals, BATCHES)
    for side in rivals.sides:
        side.engine.partitions.get("plain", 0).log.roll()
    assert not is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)
    write(rivals, 1)
    assert is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)


@pytest.mark.parametrize("bytes_max", [2_000, PLENTY])
def test_a_minimum_above_the_maximum_is_the_maximum(rivals: Rivals, bytes_max: int) -> None:
    """The client's, or the broker's own: an answer cannot be larger."""
    write(rivals, 5, index=0)
    write(rivals, 5, index=1)
    write(rivals, 5, index=2)
    rows = [(index, 0, PLENTY) for index in range(3)]
    assert is_answered(rivals, *rows, bytes_min=100 * PLENTY, bytes_max=bytes_max)


@pytest.mark.parametrize("bytes_max", [0, 900])
def test_a_minimum_above_the_maximum_is_still_waited_for_while_there_is_nothing(rivals: Rivals, bytes_max: int) -> None:
    write(rivals, 1)
    assert not is_answered(rivals, (0, 1, PLENTY), bytes_min=PLENTY, bytes_max=bytes_max)


def test_a_partition_limited_by_its_own_maximum_does_not_hold_up_the_answer(rivals: Rivals) -> None:
    write(rivals, 4)
    assert is_answered(rivals, (0, 0, 2_000), bytes_min=8_000)
    assert not is_answered(rivals, (0, 2, 2_000), bytes_min=8_000)


def test_a_batch_that_does_not_fit_any_more_does_not_hold_up_the_answer(rivals: Rivals) -> None:
    write(rivals, 1, index=0)
    write(rivals, 1, index=1)
    assert is_answered(rivals, (0, 0, PLENTY), (1, 0, PLENTY), bytes_min=1_500, bytes_max=1_500)


def test_a_fetch_wakes_at_the_maximum_if_that_is_below_its_minimum(rivals: Rivals) -> None:
    settings = {"wait_ms": 60_000, "bytes_min": PLENTY, "bytes_max": 900}  # longer than a flush may take
    frame = fetch_frame(11, 7, [(b"plain", [(0, -1, 0, PLENTY)])], lambda topic: b"", **settings)  # type: ignore[arg-type]
    for _ in range(2):
        rivals.feed(READER, frame)
        rivals.turn()
        rivals.do(lambda harness: harness.clock.advance_ms(60_000))
        rivals.turn()
    assert rivals.on.fetches_taken == 1
    rivals.feed(READER, frame)
    rivals.turn()
    for side in rivals.sides:
        side.sockets[READER].sent.clear()
    write(rivals, 1)
    rivals.turn()
    for side in rivals.sides:
        assert BATCH[21:] in bytes(side.sockets[READER].sent)
    rivals.compare()
