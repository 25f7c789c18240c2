"""Time, randomness and order of a simulation: one thread, one seed, a heap of events.

Everything that happens is an event. Events run by time and, at equal times, in the order in which they were scheduled; time
passes only between them. Each random choice is drawn from a named stream, so what one part of the world draws does not depend
on how much another has drawn: a history with one fault removed otherwise continues as it did. The trace records what happened;
two runs of one seed give the same trace, in every process.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

MS = 1_000
SECOND = 1_000_000
START_MS = 1_700_000_000_000

Action = Callable[..., None]


class World:
    """`now` is in microseconds since the beginning."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self.events = 0
        self.trace: list[tuple[int, str, str, tuple[Any, ...]]] = []
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._made = 0
        self._streams: dict[str, random.Random] = {}

    def chance(self, stream: str) -> random.Random:
        """The random generator of this name."""
        generator = self._streams.get(stream)
        if generator is None:
            generator = self._streams[stream] = random.Random(f"{self.seed}/{stream}")
        return generator

    def after(self, delay: int, action: Action, *arguments: Any) -> None:
        """Run this in `delay` microseconds."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + delay, self._made, action, arguments))

    def note(self, who: str, what: str, *details: Any) -> None:
        """Add a line to the trace. Details must be values whose text is the same in every run."""
        self.trace.append((self.now, who, what, details))

    def run(self, until: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run all events up to a time, or until nothing is left to wait for."""
        heap = self._heap
        while heap and heap[0][0] <= until and not is_done():
            self.now, _, action, arguments = heapq.heappop(heap)
            self.events += 1
            action(*arguments)
        if not is_done():
            self.now = max(self.now, until)

    def digest(self) -> str:
        """Of everything that happened: equal for equal runs."""
        lines = hashlib.sha256()
        for line in self.trace:
            lines.update(repr(line).encode())
        return lines.hexdigest()

    def told(self) -> str:
        """The trace, one line per event."""
        return "\n".join(
            f"{time / SECOND:12.6f}  {who:12} {what} {' '.join(map(str, details))}".rstrip()
            for time, who, what, details in self.trace
        )


class Timeline:
    """The time of a world in seconds, for code that counts in seconds: the simulated ZooKeeper, and tests with a world of their
    own. It is a `Clock` too."""

    def __init__(self, world: World | None = None) -> None:
        self._world = world or World(0)

    @property
    def now(self) -> float:
        return self._world.now / SECOND

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return START_MS + self._world.now // MS

    def at(self, when: float, event: Callable[[], None]) -> None:
        self.after(when - self.now, event)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._world.after(max(0, round(seconds * SECOND)), event)

    def run(self, seconds: float) -> None:
        """Run every event that is due within this many seconds."""
        self._world.run(self._world.now + round(seconds * SECOND))

    def run_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """The same until the condition holds; fails if it never does."""
        self._world.run(self._world.now + round(seconds * SECOND), condition)
        assert condition(), f"did not happen within {seconds} s"


class NodeClock:
    """A machine's clocks: they run at their own rate, and the wall clock may be set."""

    def __init__(self, world: World, *, rate: float = 1.0) -> None:
        self._world = world
        self._rate = rate
        self._since = 0  # when the current rate took effect
        self._elapsed = 0.0  # seconds on this clock up to then
        self.offset_ms = 0

    def monotonic(self) -> float:
        return self._elapsed + (self._world.now - self._since) / SECOND * self._rate

    def now_ms(self) -> int:
        return START_MS + self.offset_ms + int(self.monotonic() * 1000)

    def set_rate(self, rate: float) -> None:
        self._elapsed, self._since, self._rate = self.monotonic(), self._world.now, rate

    def until(self, deadline: float) -> int:
        """Microseconds of the world until this clock shows `deadline`; 0 if it already does."""
        return max(0, int((max(deadline, self.monotonic()) - self.monotonic()) / self._rate * SECOND) + 1)
