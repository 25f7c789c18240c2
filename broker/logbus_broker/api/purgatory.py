"""Requests that wait: for a deadline, and fetches for new bytes.

A waiting fetch only counts the bytes that become exposed on its partitions; nothing is polled.

Long polls are in a heap, because each sets its own wait time. Producers all use the same few timeouts, and requests with the same
timeout arrive in the order of their deadlines: a queue per timeout costs next to nothing, and a producer that waits for the disk
adds an entry with every request. An entry that ended early stays until it is first in line, or is swept out once such entries
are the majority: a client that opens long polls and disconnects must not fill the memory with deadlines that are days away.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf

from logbus_broker.log.partition import Partition

_STALE_MAX = 64
_QUEUES_MAX = 16  # clients use few timeouts; requests with further ones go into the heap


class Deadline:
    """Something that waits until `deadline`, on the monotonic clock."""

    __slots__ = ("deadline", "is_over", "is_timed")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.is_over = False
        self.is_timed = False  # whether it was added to the deadlines: what happens at once never is

    def expire(self) -> None:
        """The deadline has passed. Implementations guard their answers themselves (`Pending.complete_with`)."""
        raise AssertionError("every kind says what happens")


class Deadlines:
    """Everything that waits; on the loop's thread only. `due` is when to call `expire`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._queues: dict[int, deque[Deadline]] = {}  # by timeout
        self._sequence = count()
        self._count = 0  # entries in the heap and all queues
        self._stale = 0  # entries that no longer wait
        self.due = inf  # the first deadline, or earlier: entries that ended early are not searched for

    def __len__(self) -> int:
        """How many wait."""
        return self._count - self._stale

    def add(self, waiting: Deadline) -> None:
        self._count += 1
        waiting.is_timed = True
        heapq.heappush(self._heap, (waiting.deadline, next(self._sequence), waiting))
        if waiting.deadline < self.due:
            self.due = waiting.deadline

    def add_in_order(self, waiting: Deadline, timeout_ms: int) -> None:
        """Add an entry that starts waiting now, for as long as all others added with the same timeout."""
        queue = self._queues.get(timeout_ms)
        if queue is None:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues = {timeout: queue for timeout, queue in self._queues.items() if queue}
            if len(self._queues) >= _QUEUES_MAX:
                self.add(waiting)
                return
            queue = self._queues[timeout_ms] = deque()
        self._count += 1
        waiting.is_timed = True
        queue.append(waiting)
        if waiting.deadline < self.due:
            self.due = waiting.deadline

    def cancel(self, waiting: Deadline) -> None:
        """The entry ends early, perhaps before it was added. Cancelling twice is harmless."""
        if waiting.is_over:
            return
        waiting.is_over = True
        if not waiting.is_timed:
            return
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
        """End entries whose deadline has passed."""
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


class DelayedFetch(Deadline):
    """One parked fetch: `answer()` reads again and completes it."""

    __slots__ = ("answer", "bytes_missing", "partitions", "purgatory")

    def __init__(self, *, partitions: list[Partition], bytes_missing: int, deadline: float, answer: Callable[[], None]) -> None:
        super().__init__(deadline)
        self.partitions = partitions
        self.bytes_missing = bytes_missing
        self.answer = answer
        self.purgatory: Purgatory | None = None  # in which it is parked

    def expire(self) -> None:
        assert self.purgatory is not None, "parked by `add`"
        answer = self.answer
        self.purgatory.forget(self)
        answer()


class Purgatory:
    """All waiting fetches, by partition."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._by_partition: dict[Partition, dict[DelayedFetch, None]] = {}  # in order of arrival
        self._count = 0

    def __len__(self) -> int:
        """How many fetches wait."""
        return self._count

    def add(self, waiting: DelayedFetch) -> None:
        waiting.purgatory = self
        self._count += 1
        for partition in waiting.partitions:
            self._by_partition.setdefault(partition, {})[waiting] = None
        self._deadlines.add(waiting)

    def has_waiters(self, partition: Partition) -> bool:
        return partition in self._by_partition

    def exposed(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` more bytes of the partition became visible."""
        if partition not in self._by_partition:
            return
        for waiting in list(self._by_partition[partition]):
            waiting.bytes_missing -= byte_count
            if waiting.bytes_missing <= 0:
                self.finish(waiting)

    def wake(self, partition: Partition) -> None:
        """Something other than data happened to the partition (deleted, taken offline): its waiters read again."""
        for waiting in list(self._by_partition.get(partition, ())):
            self.finish(waiting)

    def wake_where(self, is_concerned: Callable[[Partition], bool]) -> None:
        """The same for all such partitions."""
        for partition in [partition for partition in self._by_partition if is_concerned(partition)]:
            self.wake(partition)

    def finish(self, waiting: DelayedFetch) -> None:
        answer = waiting.answer
        self.cancel(waiting)
        answer()

    def cancel(self, waiting: DelayedFetch) -> None:
        """Forget it: its connection closed, or it is being answered."""
        if not waiting.is_over:
            self._deadlines.cancel(waiting)
            self.forget(waiting)

    def forget(self, waiting: DelayedFetch) -> None:
        """The fetch no longer waits, and its deadline no longer matters."""
        self._count -= 1
        waiting.answer = _nothing  # the request must not be kept alive until its deadline
        for partition in waiting.partitions:
            waiters = self._by_partition.get(partition)
            if waiters is not None:
                waiters.pop(waiting, None)
                if not waiters:
                    del self._by_partition[partition]


def _nothing() -> None:
    """The `answer` of a fetch that no longer waits."""
