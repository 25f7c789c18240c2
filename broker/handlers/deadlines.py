"""What ends at a time unless something else ends it before: long polls, and produce requests that wait for the disk or for
replicas.

Long polls lie in a heap, since each says for itself how long it waits. Producers all name the same few timeouts, so those of
one timeout are in order as they come: a queue for each costs nearly nothing, and a producer that waits for the disk adds to one
with every request. What ended before its time stays until it is the first, or is swept out where such entries are the greater
part: a client that opens long polls and leaves must not fill the memory with deadlines that are days away.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from math import inf

_STALE_MAX = 64
_QUEUES_MAX = 16  # clients name few timeouts; who names others gets an entry in the heap


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
    """All that wait; the loop's thread only. `due` says when to call `expire`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._queues: dict[int, deque[Deadline]] = {}  # by timeout
        self._sequence = count()
        self._count = 0  # entries in all of them
        self._stale = 0  # entries that wait no longer
        self.due = inf  # when the first one ends, or earlier: what ended before its time is not looked for

    def __len__(self) -> int:
        """How many wait."""
        return self._count - self._stale

    def add(self, waiting: Deadline) -> None:
        self._count += 1
        heapq.heappush(self._heap, (waiting.deadline, next(self._sequence), waiting))
        if waiting.deadline < self.due:
            self.due = waiting.deadline

    def add_in_order(self, waiting: Deadline, timeout_ms: int) -> None:
        """One that begins now, and may wait for as long as all that were added with the same timeout."""
        queue = self._queues.get(timeout_ms)
        if queue is None:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues = {timeout: queue for timeout, queue in self._queues.items() if queue}
            if len(self._queues) >= _QUEUES_MAX:
                self.add(waiting)
                return
            queue = self._queues[timeout_ms] = deque()
        self._count += 1
        queue.append(waiting)
        if waiting.deadline < self.due:
            self.due = waiting.deadline

    def cancel(self, waiting: Deadline) -> None:
        """It is over before its time. Again is harmless."""
        if waiting.is_over:
            return
        waiting.is_over = True
        self._stale += 1
        if self._stale > _STALE_MAX and self._stale * 2 > self._count:
            self._sweep()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_over]
        heapq.heapify(self._heap)
        self._count = len(self._heap)
        for queue in self._queues.values():
            left = [waiting for waiting in queue if not waiting.is_over]
            queue.clear()
            queue.extend(left)
            self._count += len(left)
        self._stale = 0

    def expire(self, now: float) -> None:
        """End those whose time has come."""
        try:
            heap = self._heap
            while heap and (heap[0][0] <= now or heap[0][2].is_over):
                _, _, waiting = heapq.heappop(heap)
                self._end(waiting)
                heap = self._heap  # `cancel` may have replaced it
            for queue in list(self._queues.values()):
                while queue and (queue[0].is_over or queue[0].deadline <= now):
                    self._end(queue.popleft())
        finally:
            firsts = [self._heap[0][0]] if self._heap else []
            self.due = min([*firsts, *(queue[0].deadline for queue in self._queues.values() if queue)], default=inf)

    def _end(self, waiting: Deadline) -> None:
        self._count -= 1
        if waiting.is_over:
            self._stale -= 1
        else:
            waiting.is_over = True
            waiting.expire()
