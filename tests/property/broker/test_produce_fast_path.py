"""One contract, two paths: whatever is sent, a broker with the fast path and one without it answer the same bytes, close the same
connections and store the same logs and indexes. `make soak` sends a hundred thousand requests; this test sends some thousands,
the same in every run. `tests.support.two_paths` defines what is sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.batches import NOW_MS, plain_batch, produced
from tests.support.examples import examples
from tests.support.two_paths import Rivals, produce_frame, run

REQUESTS = examples(1_500, at_least=300)  # of fewer, too little happens


@pytest.mark.parametrize("seed", ["a", "b"])
def test_requests_one_at_a_time_are_answered_and_stored_as_without_the_fast_path(tmp_path: Path, seed: str) -> None:
    """With small segments, which roll by size and by age."""
    rivals = run(tmp_path, seed, REQUESTS, senders=3, pipelined=1)
    assert rivals.on.taken > REQUESTS // 4
    assert any(segments > 3 for _, _, segments in rivals.off.ends().values())
    rivals.close()


@pytest.mark.parametrize("seed", ["c", "d"])
def test_requests_of_several_connections_in_a_turn_are_answered_and_stored_as_without_the_fast_path(
    tmp_path: Path, seed: str
) -> None:
    rivals = run(tmp_path, seed, REQUESTS, senders=6, pipelined=12)
    assert rivals.on.taken > REQUESTS // 4
    rivals.close()


def test_what_producers_usually_send_takes_the_fast_path(tmp_path: Path) -> None:
    rivals = run(tmp_path, "usual", REQUESTS, senders=4, pipelined=4, strange=0.0, topics=(b"plain",), administration=0.0)
    assert rivals.on.taken > REQUESTS * 0.9
    rivals.close()


def test_requests_cut_at_every_byte_are_answered_and_stored_as_without_the_fast_path(tmp_path: Path) -> None:
    rivals = Rivals(tmp_path)
    sequence = 0

    def requests(version: int) -> bytes:
        nonlocal sequence
        sequence += 3
        plain, numbered = bytes(plain_batch(2, timestamp=NOW_MS)), bytes(produced(1, sequence - 3, 3))
        return b"".join(
            produce_frame(version, number, [(b"plain", partitions)], acks=acks)
            for number, (partitions, acks) in enumerate(
                [([(0, plain)], 1), ([(1, numbered), (0, plain)], -1), ([(2, plain[:-1])], 1), ([(0, plain)], 0)]
            )
        )

    for number, version in enumerate((8, 9)):
        for _ in range(3):
            rivals.feed(number, requests(version))
            rivals.turn()
        for cut in range(1, len(requests(version))):
            data = requests(version)
            for part in (data[:cut], data[cut:]):
                rivals.feed(number, part)
                rivals.turn()
    assert rivals.on.taken > 1_000
    rivals.close()
