"""What ends at a time unless something else ends it before: long polls, and produce requests that wait for the disk.

A heap. What ended before its time stays in it until the time comes, or is swept out where such entries are the greater part: a
client that opens long polls and leaves must not fill it with deadlines that are days away.
"""

from __future__ import annotations

import heapq
from itertools import count

_STALE_MAX = 64


class Deadline:
    """Something that waits until `deadline`, on the monotonic clock."""

    __slots__ = ("deadline", "is_over")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.is_over = False

    def expire(self) -> None:
        """Its time has come. Whatever it answers guards itself (`Pending.complete_with`)."""
        raise AssertionError("every kind says what happens")


class Deadlines:
    """All that wait; the loop's thread only."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._sequence = count()
        self._stale = 0  # entries that wait no longer

    def __len__(self) -> int:
        """How many wait."""
        return len(self._heap) - self._stale

    def add(self, waiting: Deadline) -> None:
        heapq.heappush(self._heap, (waiting.deadline, next(self._sequence), waiting))

    def cancel(self, waiting: Deadline) -> None:
        """It is over before its time. Again is harmless."""
        if waiting.is_over:
            return
        waiting.is_over = True
        self._stale += 1
        if self._stale > _STALE_MAX and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)
            self._stale = 0

    def expire(self, now: float) -> None:
        """End those whose time has come."""
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].is_over):
            _, _, waiting = heapq.heappop(heap)
            if waiting.is_over:
                self._stale -= 1
            else:
                waiting.is_over = True
                waiting.expire()
            heap = self._heap  # `cancel` may have replaced it

    def next_deadline(self) -> float | None:
        return self._heap[0][0] if self._heap else None
