"""A turn in which only the fast path worked ends early; all other work is still done when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.network.poller import WRITE

from tests.support.batches import plain_batch
from tests.support.engine import Harness
from tests.support.loop import Loop
from tests.support.sockets import ScriptedSocket
from tests.support.two_paths import produce_frame
from tests.support.wire import Wanted, fetch_body

USUAL = produce_frame(9, 1, [(b"clicks", [(0, bytes(plain_batch(2)))])])


def fetch_of(*, offset: int, wait_ms: int) -> bytes:
    content = b"\0\x01\0\x0c\0\0\0\x09\0\x01r\0" + bytes(fetch_body(Wanted(topic="clicks", offset=offset), wait_ms=wait_ms))
    return len(content).to_bytes(4, "big") + content


class CountingTurn:
    """An engine's turns, counted."""

    def __init__(self, harness: Harness) -> None:
        self._engine = harness.engine
        self.ended = 0

    def drain_thread_pool(self) -> None:
        self._engine.drain_thread_pool()

    def end_turn(self) -> None:
        self.ended += 1
        self._engine.end_turn()

    def answer_staged(self) -> None:
        self._engine.answer_staged()

    def next_deadline(self) -> float:
        return self._engine.next_deadline()


class Scene:
    """A loop over a whole engine, with a producer and a consumer."""

    def __init__(self, directory: Path) -> None:
        self.harness = Harness(directory)
        self.harness.create("clicks", 2)
        self.turns = CountingTurn(self.harness)
        self.loop = Loop(
            self.harness.engine.dispatch, fast_path=self.harness.engine.fast_path, clock=self.harness.clock, steps=self.turns
        )
        self.sock = self.loop.connect()
        self.reader = self.loop.connect()

    def send(self, data: bytes = USUAL, times: int = 1) -> None:
        for _ in range(times):
            self.loop.send(data, self.sock)

    def fetch(self, data: bytes, times: int = 1) -> None:
        for _ in range(times):
            self.loop.send(data, self.reader)

    def later(self, milliseconds: int) -> None:
        """A turn in which only time has passed."""
        self.harness.clock.advance_ms(milliseconds)
        self.loop.turn()

    def flush(self) -> None:
        """A turn after the threads have done their work."""
        self.harness.thread_pool.run()
        self.loop.turn()

    @property
    def answers(self) -> int:
        return bytes(self.sock.sent).count(b"clicks")

    @property
    def fetched(self) -> int:
        return bytes(self.reader.sent).count(b"clicks")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_turns_of_the_fast_path_alone_are_short(scene: Scene) -> None:
    scene.send(times=3)
    ended = scene.turns.ended
    scene.send(times=5)
    assert scene.turns.ended == ended, "the first ones taught it"
    assert scene.answers == 8


def test_a_request_in_two_parts_is_answered(scene: Scene) -> None:
    scene.send(times=4)
    for piece in [USUAL[:50], USUAL[50:]] * 4:
        scene.send(piece)
    assert scene.answers == 8


def test_another_request_in_the_same_turn_makes_it_a_whole_one(scene: Scene) -> None:
    scene.send(times=4)
    ended = scene.turns.ended
    scene.send(USUAL + produce_frame(9, 1, [(b"clicks", [(0, bytes(plain_batch(2)))])], acks=2))
    assert scene.turns.ended == ended + 1
    scene.send()
    assert scene.answers == 7


def test_what_is_due_is_done_however_busy_the_fast_path_is(scene: Scene) -> None:
    scene.send(times=4)
    for _ in range(12):
        scene.harness.clock.advance_ms(300)
        scene.send()
    assert scene.harness.thread_pool.jobs, "a second has passed: what was written is flushed"
    assert scene.loop.swept >= 3


def test_a_waiting_fetch_is_answered_when_the_fast_path_has_written(scene: Scene) -> None:
    scene.send(times=4)
    scene.later(1_000)
    scene.flush()
    scene.fetch(fetch_of(offset=8, wait_ms=60_000))
    scene.send()
    scene.flush()
    scene.flush()
    assert b"value" in scene.reader.sent
    assert scene.harness.engine.counters.fast_path == 3


def test_an_answer_that_the_socket_does_not_take_is_sent_later(scene: Scene) -> None:
    scene.send(times=4)
    scene.sock.room = 10
    scene.send()
    scene.sock.room = 1 << 20
    scene.loop.turn(scene.loop.ready(scene.sock, WRITE))
    assert scene.answers == 5


def test_turns_of_fetches_that_the_fast_path_answers_are_short(scene: Scene) -> None:
    scene.fetch(fetch_of(offset=0, wait_ms=0), times=2)
    ended = scene.turns.ended
    scene.fetch(fetch_of(offset=0, wait_ms=0), times=4)
    assert scene.turns.ended == ended
    assert scene.fetched == 6
    assert scene.harness.engine.counters.fetch_fast_path == 5


def test_a_fetch_that_the_fast_path_lets_wait_is_answered_at_its_time(scene: Scene) -> None:
    """The loop must not sleep until the deadline that applied before."""
    scene.fetch(fetch_of(offset=0, wait_ms=200))
    scene.later(200)
    scene.fetch(fetch_of(offset=0, wait_ms=200))
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert scene.loop.poller.timeout == pytest.approx(0.2)
    assert scene.fetched == 1
    scene.later(200)
    assert scene.fetched == 2


def test_a_fetch_that_the_fast_path_lets_wait_starts_the_flush_that_it_waits_for(scene: Scene) -> None:
    scene.fetch(fetch_of(offset=0, wait_ms=200))
    scene.later(200)
    scene.send()
    scene.fetch(fetch_of(offset=0, wait_ms=200))
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert len(scene.harness.thread_pool.jobs) == 1
    scene.flush()
    scene.loop.turn()
    assert b"value" in scene.reader.sent


def test_a_fetch_is_not_taken_before_requests_that_wait_for_their_answers(scene: Scene) -> None:
    """Nor together with another: the requests of a connection are answered in order."""
    fetch = fetch_of(offset=0, wait_ms=0)
    for data in (fetch, fetch, fetch + fetch, USUAL + fetch):
        scene.fetch(data)
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert scene.fetched == 6


class Reporting(ScriptedSocket):
    """Notes how many flushes have begun whenever something is sent."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self._harness = harness
        self.begun: list[int] = []

    def sendmsg(self, buffers: list[memoryview], ancillary: tuple = (), flags: int = 0) -> int:
        self.begun.append(len(self._harness.thread_pool.jobs))
        return super().sendmsg(buffers, ancillary, flags)


def test_a_flush_for_which_somebody_waits_begins_before_the_answer_leaves(scene: Scene) -> None:
    """An answered client wakes up, and may take the CPU. If other clients have sent something too, one flush covers it all."""
    sock = Reporting(scene.harness)
    scene.loop.connect(sock=sock)
    for teaching in (sock, scene.sock) * 2:
        scene.loop.send(USUAL, teaching)
    scene.later(1_000)
    scene.flush()
    scene.fetch(fetch_of(offset=8, wait_ms=60_000))
    scene.loop.send(USUAL, sock)
    assert sock.begun[-1] == 1
    scene.flush()
    scene.flush()
    scene.fetch(fetch_of(offset=10, wait_ms=60_000))
    sock.begun.clear()
    scene.loop.send(USUAL, sock, scene.sock)
    scene.flush()
    scene.flush()
    assert sock.begun == [0]
    assert scene.fetched == 2
