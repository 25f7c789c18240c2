"""Waiting fetches: until enough new bytes are exposed on their partitions, or their deadline passes.

A waiting fetch only counts the bytes that become exposed; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.handlers.deadlines import Deadline, Deadlines
from broker.partitions.partition import Partition


class WaitingFetch(Deadline):
    """One parked fetch: `answer()` reads again and completes it."""

    __slots__ = ("_purgatory", "answer", "bytes_missing", "partitions")

    def __init__(self, *, partitions: list[Partition], bytes_missing: int, deadline: float, answer: Callable[[], None]) -> None:
        super().__init__(deadline)
        self.partitions = partitions
        self.bytes_missing = bytes_missing
        self.answer = answer
        self._purgatory: Purgatory | None = None

    def parked_in(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory

    def expire(self) -> None:
        assert self._purgatory is not None, "parked by `add`"
        answer = self.answer
        self._purgatory.forget(self)
        answer()


class Purgatory:
    """All waiting fetches, by partition."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._by_partition: dict[Partition, dict[WaitingFetch, None]] = {}  # in order of arrival
        self._count = 0

    def __len__(self) -> int:
        """How many fetches wait."""
        return self._count

    def add(self, waiting: WaitingFetch) -> None:
        waiting.parked_in(self)
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

    def finish(self, waiting: WaitingFetch) -> None:
        answer = waiting.answer
        self.cancel(waiting)
        answer()

    def cancel(self, waiting: WaitingFetch) -> None:
        """Forget it: its connection closed, or it is being answered."""
        if not waiting.is_over:
            self._deadlines.cancel(waiting)
            self.forget(waiting)

    def forget(self, waiting: WaitingFetch) -> None:
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
