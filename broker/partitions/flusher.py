"""Flush before expose, with group commit (the paper, section 3.1).

Records become visible when they are on disk. A flush starts when somebody waits for what is not flushed, or when
log.flush.interval.messages or log.flush.interval.ms bound it; it runs on a helper thread, one at a time for each partition,
and takes all that arrived until it began. What arrives meanwhile goes with the next one.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count

from broker.clock import Clock
from broker.errors import StorageError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.storage.flush import FlushTicket

logger = logging.getLogger("broker.flush")

WhenVisible = Callable[[StorageError | None], None]


class Flusher:
    """Knows which partitions have unflushed records and who waits for them."""

    def __init__(self, helpers: Helpers, clock: Clock) -> None:
        self._helpers = helpers
        self._clock = clock
        self._dirty_since: dict[Partition, float] = {}
        self._wanted: set[Partition] = set()
        self._in_flight: set[Partition] = set()
        self._unexposed_bytes: dict[Partition, int] = {}
        self._waiters: dict[Partition, list[tuple[int, int, WhenVisible]]] = {}
        self._sequence = count()
        self.on_exposed: Callable[[Partition, int], None] = lambda partition, byte_count: None
        self.on_offline: Callable[[Partition], None] = lambda partition: None

    def appended(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were written to the partition's log and are not flushed yet."""
        self._unexposed_bytes[partition] = self._unexposed_bytes.get(partition, 0) + byte_count
        if partition not in self._dirty_since:
            self._dirty_since[partition] = self._clock.monotonic()

    def want(self, partition: Partition) -> None:
        """Somebody waits: flush at the end of this turn, or as soon as the flush in flight is done."""
        if partition in self._dirty_since:
            self._wanted.add(partition)

    def when_visible(self, partition: Partition, offset: int, then: WhenVisible) -> None:
        """Call `then(None)` once everything below `offset` is flushed; at once where it is already."""
        if partition.visible_offset >= offset:
            then(None)
            return
        heapq.heappush(self._waiters.setdefault(partition, []), (offset, next(self._sequence), then))
        self.want(partition)

    def end_turn(self) -> None:
        """Start every flush that is wanted or due."""
        if not self._dirty_since:
            return
        now = self._clock.monotonic()
        for partition, since in list(self._dirty_since.items()):
            if partition not in self._in_flight and self._is_due(partition, since, now):
                self._start(partition)

    def _is_due(self, partition: Partition, since: float, now: float) -> bool:
        config = partition.log.config
        return (
            partition in self._wanted
            or partition.end_offset - partition.visible_offset >= config.flush_interval_messages
            or (now - since) * 1000 >= config.flush_interval_ms
        )

    def next_deadline(self) -> float | None:
        """When the first bound by time falls due; at once where somebody waits."""
        if any(partition not in self._in_flight for partition in self._wanted):
            return self._clock.monotonic()
        due = [
            since + p.log.config.flush_interval_ms / 1000 for p, since in self._dirty_since.items() if p not in self._in_flight
        ]
        return min(due, default=None)

    def _start(self, partition: Partition) -> None:
        self._wanted.discard(partition)
        self._dirty_since.pop(partition, None)
        byte_count = self._unexposed_bytes.pop(partition, 0)
        try:
            ticket = partition.log.begin_flush()
        except StorageError as error:
            self.forget(partition, error)
            return
        if ticket is None:
            return
        self._in_flight.add(partition)
        self._helpers.submit(ticket.run, lambda _, error: self._done(partition, ticket, byte_count, error))

    def _done(self, partition: Partition, ticket: FlushTicket, byte_count: int, error: BaseException | None) -> None:
        if partition not in self._in_flight:
            return  # forgotten meanwhile: deleted
        self._in_flight.discard(partition)
        if error is not None:
            partition.log.fail_flush(ticket, error)
            logger.critical(
                "%s: a flush failed (%s): the partition is offline until the broker is restarted", partition.name, error
            )
            self.forget(partition, StorageError(f"{partition.name}: a flush failed: {error}"))
            self.on_offline(partition)
            return
        partition.log.finish_flush(ticket)
        self._tell_waiters(partition)
        self.on_exposed(partition, byte_count)

    def _tell_waiters(self, partition: Partition) -> None:
        waiters = self._waiters.get(partition)
        if waiters is None:
            return
        while waiters and waiters[0][0] <= partition.visible_offset:
            heapq.heappop(waiters)[2](None)
        if waiters:
            self.want(partition)
        else:
            self._waiters.pop(partition, None)

    def forget(self, partition: Partition, error: StorageError) -> None:
        """The partition is gone or offline: whoever waits for it is told."""
        self._in_flight.discard(partition)
        self._dirty_since.pop(partition, None)
        self._wanted.discard(partition)
        self._unexposed_bytes.pop(partition, None)
        for _, _, then in self._waiters.pop(partition, []):
            then(error)
