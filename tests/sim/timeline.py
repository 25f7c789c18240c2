"""Virtual time: events that are due, in order. Nothing here waits, and equal seeds give equal histories."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Event = Callable[[], None]

EPOCH_MS = 1_700_000_000_000


class Timeline:
    """A heap of events by time; those due at one moment run in the order in which they were scheduled. It is a `Clock` too."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._serial = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return EPOCH_MS + round(self.now * 1000)

    def at(self, when: float, event: Event) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._serial), event))

    def after(self, seconds: float, event: Event) -> None:
        self.at(self.now + seconds, event)

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, event = heapq.heappop(self._heap)
        event()
        return True

    def run(self, seconds: float) -> None:
        """Run every event that is due within this many seconds."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.step()
        self.now = end

    def run_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """The same until the condition holds; fails if it never does."""
        end = self.now + seconds
        while not condition():
            is_late = not self._heap or self._heap[0][0] > end
            assert not is_late, f"did not happen within {seconds} s"
            self.step()
