"""One contract, two paths, for Fetch: whatever is asked, a broker with the fast path and one without answer the same bytes, close
the same connections and count the same. `make soak` sends a hundred thousand requests; this test sends some thousands, the same
in every run. `tests.support.two_fetch_paths` defines what is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import NOW_MS, plain_batch
from tests.support.examples import examples
from tests.support.two_fetch_paths import WAIT_MS, fetch_frame, run
from tests.support.two_paths import REPLICA_TAGS, Rivals, produce_frame

USUAL = 1_000
REQUESTS = examples(USUAL)


@pytest.mark.parametrize("seed", ["a", "b", "c", "d"])
def test_requests_are_answered_as_without_the_fast_path(tmp_path: Path, seed: str) -> None:
    rivals = run(tmp_path, seed, REQUESTS, readers=6)
    assert rivals.on.fetches_taken > REQUESTS // 5
    rivals.close()


def test_what_consumers_usually_send_takes_the_fast_path(tmp_path: Path) -> None:
    rivals = run(tmp_path, "usual", USUAL, readers=3, strange=0.0, administration=0.0)
    assert rivals.on.fetches_taken > USUAL // 3
    rivals.close()


@pytest.mark.parametrize("version", [9, 11, 12, 17])
@pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
def test_requests_cut_at_every_byte_are_answered_as_without_the_fast_path(tmp_path: Path, version: int, wait_ms: int) -> None:
    rivals = Rivals(tmp_path)
    id_of = lambda topic: rivals.off.engine.partitions.get(topic.decode(), 0).topic_id.bytes  # noqa: E731
    rivals.feed(1, produce_frame(9, 1, [(b"plain", [(0, bytes(plain_batch(2, timestamp=NOW_MS)))])]))
    rivals.do(lambda harness: harness.flush())
    rows = [(0, -1, 0, 1 << 20), (1, -1, 0, 1 << 20)]
    empty = [(2, -1, 0, 1 << 20)]
    for topics in ([(b"plain", rows)], [(b"plain", empty)], [(b"plain", rows), (b"second", empty)]):
        frame = fetch_frame(version, 1, topics, id_of, wait_ms=wait_ms)
        for cut in (0, *range(1, len(frame))):
            for part in (frame[:cut], frame[cut:]):
                rivals.feed(2, part)
                rivals.turn()
            rivals.do(lambda harness: harness.clock.advance_ms(WAIT_MS))
            rivals.turn()
    assert rivals.on.fetches_taken > 200
    rivals.close()


@pytest.mark.parametrize(("place", "value"), [(7, 18), (7, 3), (5, 0), (5, 2), (4, 1)])
def test_what_differs_in_its_kind_or_version_alone_is_not_taken(tmp_path: Path, place: int, value: int) -> None:
    rivals = Rivals(tmp_path)
    id_of = lambda topic: rivals.off.engine.partitions.get(topic.decode(), 0).topic_id.bytes  # noqa: E731
    frame = bytearray(fetch_frame(17, 1, [(b"plain", [(0, -1, 0, 1 << 20)])], id_of))
    for _ in range(3):
        rivals.feed(1, bytes(frame))
        rivals.turn()
    assert rivals.on.fetches_taken == 2
    frame[place] = value
    rivals.feed(1, bytes(frame))
    rivals.turn()
    rivals.compare()
    assert rivals.on.fetches_taken == 2
    assert 1 in rivals.on.closed


@pytest.mark.parametrize(
    "changes",
    [
        {"session": (1, 1)},
        {"forgotten": [(b"plain", [(0, 0, 0, 0)])]},
        {"request_tags": REPLICA_TAGS},
        {"topic_tags": b"\x01\x09\x01x"},
        {"partition_tags": b"\x01\x09\x01x"},
        {"version": 8},
    ],
)
def test_what_is_unusual_each_time_is_never_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    """However often it arrives, the fast path learns nothing from it."""
    rivals = Rivals(tmp_path)
    id_of = lambda topic: rivals.off.engine.partitions.get(topic.decode(), 0).topic_id.bytes  # noqa: E731
    for number in range(3):
        version = changes.get("version", 17)
        others = {name: value for name, value in changes.items() if name != "version"}
        rivals.feed(1, fetch_frame(version, number, [(b"plain", [(0, -1, 0, 1 << 20)])], id_of, **others))
        rivals.turn()
    rivals.compare()
    assert len(rivals.off.sockets[1].sent) > 60
    assert rivals.on.fetches_taken == 0
