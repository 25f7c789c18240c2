"""Fetches that wait: until enough new bytes are exposed on their partitions, or their deadline passes.

A waiting fetch counts only the bytes newly exposed to it; nothing is polled. Deadlines sit in a heap; an entry that was
completed or cancelled meanwhile is skipped when it comes up, or swept out when such entries are the greater part.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from broker.partitions.partition import Partition

_STALE_MAX = 64  # a client that opens long polls and leaves must not fill the heap with deadlines that are days away


class WaitingFetch:
    """One parked fetch: `answer()` reads again and completes it."""

    __slots__ = ("answer", "bytes_missing", "deadline", "done", "partitions")

    def __init__(self, *, partitions: list[Partition], bytes_missing: int, deadline: float, answer: Callable[[], None]) -> None:
        self.partitions = partitions
        self.bytes_missing = bytes_missing
        self.deadline = deadline
        self.answer = answer
        self.done = False


class Purgatory:
    """All waiting fetches, by partition and by deadline."""

    def __init__(self) -> None:
        self._by_partition: dict[Partition, set[WaitingFetch]] = {}
        self._deadlines: list[tuple[float, int, WaitingFetch]] = []
        self._sequence = count()
        self._stale = 0  # entries of the heap that wait no longer

    def __len__(self) -> int:
        """How many fetches wait."""
        return len(self._deadlines) - self._stale

    def add(self, waiting: WaitingFetch) -> None:
        for partition in waiting.partitions:
            self._by_partition.setdefault(partition, set()).add(waiting)
        heapq.heappush(self._deadlines, (waiting.deadline, next(self._sequence), waiting))

    def has_waiters(self, partition: Partition) -> bool:
        return partition in self._by_partition

    def exposed(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` more bytes of the partition became visible."""
        for waiting in list(self._by_partition.get(partition, ())):
            waiting.bytes_missing -= byte_count
            if waiting.bytes_missing <= 0:
                self.finish(waiting)

    def wake(self, partition: Partition) -> None:
        """Something other than data happened to the partition (deleted, taken offline): its waiters read again."""
        for waiting in list(self._by_partition.get(partition, ())):
            self.finish(waiting)

    def expire(self, now: float) -> None:
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].done):
            _, _, waiting = heapq.heappop(self._deadlines)
            if waiting.done:
                self._stale -= 1
            else:
                answer = waiting.answer
                self._forget(waiting)
                answer()

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def finish(self, waiting: WaitingFetch) -> None:
        answer = waiting.answer
        self.cancel(waiting)
        answer()

    def cancel(self, waiting: WaitingFetch) -> None:
        """Forget it: its connection closed, or it is being answered."""
        if waiting.done:
            return
        self._forget(waiting)
        self._stale += 1
        if self._stale > _STALE_MAX and self._stale * 2 > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def _forget(self, waiting: WaitingFetch) -> None:
        waiting.done = True
        waiting.answer = _nothing  # its request must not live as long as its deadline
        for partition in waiting.partitions:
            waiters = self._by_partition.get(partition)
            if waiters is not None:
                waiters.discard(waiting)
                if not waiters:
                    del self._by_partition[partition]


def _nothing() -> None:
    """What a fetch that waits no longer answers."""
