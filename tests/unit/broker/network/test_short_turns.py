"""A turn in which only the fast path worked ends early; all other work is still done when it is due."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.batches import plain_batch
from tests.support.engine import Harness
from tests.support.loop import LISTENING, Events, Loop
from tests.support.sockets import ScriptedSocket
from tests.support.two_paths import produce_frame
from tests.support.wire import Wanted, fetch_body

READ = 1
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
    """A loop over a whole engine; each step is what is sent in one turn."""

    def __init__(self, directory: Path) -> None:
        self.harness = Harness(directory)
        self.harness.create("clicks", 2)
        self.turn = CountingTurn(self.harness)
        self.loop = Loop(
            self.harness.engine.dispatch, fast_path=self.harness.engine.fast_path, clock=self.harness.clock, turn=self.turn
        )
        self.sock = self.loop.connect()
        self.reader = self.loop.connect()

    def run(self, *steps: Callable[[], Events | None]) -> None:
        self.loop.run(lambda: [(LISTENING, READ)], *steps)

    def send(self, data: bytes = USUAL, sock: ScriptedSocket | None = None) -> Callable[[], Events]:
        def step() -> Events:
            (sock or self.sock).incoming += data
            return self.loop.ready(sock or self.sock)

        return step

    def ended(self, by: list[int]) -> Callable[[], Events]:
        """Note how many turns have been ended so far, in a turn in which nothing is ready."""

        def step() -> Events:
            by.append(self.turn.ended)
            return []

        return step

    def note(self, by: list[int], step: Callable[[], Events]) -> Callable[[], Events]:
        def noted() -> Events:
            by.append(self.turn.ended)
            return step()

        return noted

    def later(self, milliseconds: int) -> Callable[[], Events]:
        """A turn in which only time has passed."""

        def step() -> Events:
            self.harness.clock.advance_ms(milliseconds)
            return []

        return step

    def flushed(self) -> Events:
        """A turn after the threads have done their work."""
        self.harness.thread_pool.run()
        return []

    @property
    def answers(self) -> int:
        return bytes(self.sock.sent).count(b"clicks")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_turns_of_the_fast_path_alone_are_short(scene: Scene) -> None:
    ended: list[int] = []
    scene.run(*[scene.note(ended, scene.send()) for _ in range(8)], scene.ended(ended))
    assert ended[-1] - ended[3] == 0, "the first ones taught it"
    assert scene.answers == 8


def test_a_request_in_two_parts_is_answered(scene: Scene) -> None:
    parts = [scene.send(piece) for _ in range(4) for piece in (USUAL[:50], USUAL[50:])]
    scene.run(*[scene.send() for _ in range(4)], *parts)
    assert scene.answers == 8


def test_another_request_in_the_same_turn_makes_it_a_whole_one(scene: Scene) -> None:
    ended: list[int] = []
    strange = produce_frame(9, 1, [(b"clicks", [(0, bytes(plain_batch(2)))])], acks=2)
    scene.run(*[scene.send() for _ in range(4)], scene.note(ended, scene.send(USUAL + strange)), scene.note(ended, scene.send()))
    assert ended[1] == ended[0] + 1
    assert scene.answers == 7


def test_what_is_due_is_done_however_busy_the_fast_path_is(scene: Scene) -> None:
    def step() -> Events:
        scene.harness.clock.advance_ms(300)
        return scene.send()()

    scene.run(*[scene.send() for _ in range(4)], *[step for _ in range(12)])
    assert scene.harness.thread_pool.jobs, "a second has passed: what was written is flushed"
    assert scene.loop.swept >= 3


def test_a_waiting_fetch_is_answered_when_the_fast_path_has_written(scene: Scene) -> None:
    waits = scene.send(fetch_of(offset=8, wait_ms=60_000), scene.reader)
    before = [*[scene.send() for _ in range(4)], scene.later(1_000), scene.flushed]
    scene.run(*before, waits, scene.send(), scene.flushed, scene.flushed)
    assert b"value" in scene.reader.sent
    assert scene.harness.engine.counters.fast_path == 3


def test_an_answer_that_the_socket_does_not_take_is_sent_later(scene: Scene) -> None:
    def full() -> Events:
        scene.sock.room = 10
        return scene.send()()

    def room() -> Events:
        scene.sock.room = 1 << 20
        return [(scene.sock.fileno(), 4)]

    scene.run(*[scene.send() for _ in range(4)], full, room)
    assert scene.answers == 5


def test_turns_of_fetches_that_the_fast_path_answers_are_short(scene: Scene) -> None:
    ended: list[int] = []
    asks = scene.send(fetch_of(offset=0, wait_ms=0), scene.reader)
    scene.run(*[scene.note(ended, asks) for _ in range(6)], scene.ended(ended))
    assert ended[-1] == ended[2]
    assert bytes(scene.reader.sent).count(b"clicks") == 6
    assert scene.harness.engine.counters.fetch_fast_path == 5


def test_a_fetch_that_the_fast_path_lets_wait_is_answered_at_its_time(scene: Scene) -> None:
    """The loop must not sleep until the deadline that applied before."""
    asks, time = scene.send(fetch_of(offset=0, wait_ms=200), scene.reader), scene.later(200)

    def sent() -> Events:
        answered.append(bytes(scene.reader.sent).count(b"clicks"))
        return []

    answered: list[int] = []
    scene.run(asks, time, asks, sent, time, sent)
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert scene.loop.poller.timeouts[4] == pytest.approx(0.2)
    assert answered == [1, 2]


def test_a_fetch_that_the_fast_path_lets_wait_starts_the_flush_that_it_waits_for(scene: Scene) -> None:
    asks = scene.send(fetch_of(offset=0, wait_ms=200), scene.reader)

    def written_and_flushed() -> Events:
        flushes.append(len(scene.harness.thread_pool.jobs))
        return scene.flushed()

    flushes: list[int] = []
    scene.run(asks, scene.later(200), scene.send(), asks, written_and_flushed, scene.ended([]))
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert flushes == [1]
    assert b"value" in scene.reader.sent


def test_a_fetch_is_not_taken_before_requests_that_wait_for_their_answers(scene: Scene) -> None:
    """Nor together with another: the requests of a connection are answered in order."""
    fetch = fetch_of(offset=0, wait_ms=0)
    asks = scene.send(fetch, scene.reader)
    scene.run(asks, asks, scene.send(fetch + fetch, scene.reader), scene.send(USUAL + fetch, scene.reader))
    assert scene.harness.engine.counters.fetch_fast_path == 1
    assert bytes(scene.reader.sent).count(b"clicks") == 6


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
    waits = scene.send(fetch_of(offset=8, wait_ms=60_000), scene.reader)
    sock = Reporting(scene.harness)
    scene.loop.connect(sock=sock)
    others: list[int] = []

    def together() -> Events:
        sock.begun.clear()
        return [*scene.send(sock=sock)(), *scene.send(sock=scene.sock)()]

    teach = [scene.send(sock=sock), scene.send(sock=scene.sock), scene.send(sock=sock), scene.send(sock=scene.sock)]
    first = [scene.send(sock=sock), lambda: (others.extend(sock.begun[-1:]), [])[1], scene.flushed, scene.flushed]
    again = scene.send(fetch_of(offset=10, wait_ms=60_000), scene.reader)
    scene.run(*teach, scene.later(1_000), scene.flushed, waits, *first, again, together, scene.flushed, scene.flushed)
    assert others == [1]
    assert sock.begun == [0]
    assert bytes(scene.reader.sent).count(b"clicks") == 2
