"""Flush before expose, with group commit (the paper, section 3.1).

Records become visible when they are on disk. A flush starts when somebody waits for what is not flushed, or when
log.flush.interval.messages or log.flush.interval.ms bound it; it runs on a helper thread, one at a time for each partition,
and takes all that arrived until it began. What arrives meanwhile goes with the next one.

Those whom a flush has answered come back, one shortly after the other: a flush that began with the first of them would leave the
others to the next one, and the disk would turn for every request or two. So the next flush waits until as many wait as were
answered together, or for a moment that is short beside a flush (GATHER_SECONDS).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count

from broker.clock import Clock
from broker.counters import Histogram
from broker.errors import StorageError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.storage.flush import FlushTicket

logger = logging.getLogger("broker.flush")

WhenVisible = Callable[[StorageError | None], None]

# A flush of busy data takes several of these, and epoll counts in whole milliseconds.
GATHER_SECONDS = 0.001


class Flusher:
    """Knows which partitions have unflushed records and who waits for them.

    A turn costs what is due in it, however many partitions are dirty: those that are due lie in `_due`; a heap says when the
    others are to be looked at. It holds a partition at most once, and may hold one that was flushed meanwhile: that is found out
    when its time comes.
    """

    def __init__(self, helpers: Helpers, clock: Clock, durations: Histogram) -> None:
        self._helpers = helpers
        self._clock = clock
        self._durations = durations
        self._dirty_since: dict[Partition, float] = {}
        self._due: set[Partition] = set()
        self._deadlines: list[tuple[float, int, Partition]] = []
        self._scheduled: set[Partition] = set()  # those in the heap
        self._in_flight: set[Partition] = set()
        self._unexposed_bytes: dict[Partition, int] = {}
        self._waiters: dict[Partition, list[tuple[int, int, WhenVisible]]] = {}
        self._gathering: dict[Partition, tuple[int, float]] = {}  # how many are awaited, and until when
        self._sequence = count()
        self.on_exposed: Callable[[Partition, int], None] = lambda partition, byte_count: None
        self.on_offline: Callable[[Partition], None] = lambda partition: None

    def appended(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were written to the partition's log and are not flushed yet."""
        log = partition.log
        if partition in self._dirty_since:
            self._unexposed_bytes[partition] += byte_count
        else:
            self._dirty_since[partition] = self._clock.monotonic()
            self._unexposed_bytes[partition] = byte_count
            if partition not in self._scheduled:
                self._schedule(partition)
        if log.end_offset - log.flushed_offset >= log.config.flush_interval_messages:
            self._due.add(partition)

    def want(self, partition: Partition) -> None:
        """Somebody waits: flush at the end of this turn, or as soon as the flush in flight is done."""
        if partition in self._dirty_since:
            self._due.add(partition)

    def when_visible(self, partition: Partition, offset: int, then: WhenVisible) -> None:
        """Call `then(None)` once everything below `offset` is flushed; at once where it is already."""
        if partition.visible_offset >= offset:
            then(None)
            return
        heapq.heappush(self._waiters.setdefault(partition, []), (offset, next(self._sequence), then))
        self.want(partition)

    def end_turn(self) -> None:
        """Start every flush that is wanted or due."""
        if self._deadlines and self._deadlines[0][0] <= self._clock.monotonic():
            self._collect_due(self._clock.monotonic())
        if self._due:
            for partition in self._due - self._in_flight:
                if partition not in self._gathering or self._has_gathered(partition):
                    self._start(partition)

    def _has_gathered(self, partition: Partition) -> bool:
        count, until = self._gathering[partition]
        if len(self._waiters.get(partition, ())) < count and self._clock.monotonic() < until:
            return False
        del self._gathering[partition]
        return True

    def _schedule(self, partition: Partition) -> None:
        self._scheduled.add(partition)
        heapq.heappush(self._deadlines, (self._deadline_of(partition), next(self._sequence), partition))

    def _deadline_of(self, partition: Partition) -> float:
        return self._dirty_since[partition] + partition.log.config.flush_interval_ms / 1000

    def _collect_due(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            partition = self._unschedule_first()
            if partition not in self._dirty_since:
                continue
            if self._deadline_of(partition) <= now:
                self._due.add(partition)
            else:
                self._schedule(partition)  # flushed and written again since

    def _unschedule_first(self) -> Partition:
        _, _, partition = heapq.heappop(self._deadlines)
        self._scheduled.discard(partition)
        return partition

    def next_deadline(self) -> float | None:
        """When there is something to look at; at once where a flush can start."""
        if self._due and (startable := self._due - self._in_flight):
            now = self._clock.monotonic()
            return min(max(self._gathering[part][1], now) if part in self._gathering else now for part in startable)
        while self._deadlines and self._deadlines[0][2] not in self._dirty_since:
            self._unschedule_first()
        return self._deadlines[0][0] if self._deadlines else None

    def _start(self, partition: Partition) -> None:
        self._due.discard(partition)
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
        started = self._clock.monotonic()

        def done(_: object, error: BaseException | None) -> None:
            self._durations.observe(self._clock.monotonic() - started)
            self._done(partition, ticket, byte_count, error)

        self._helpers.flush(ticket, done)

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
        self._gathering[partition] = len(waiters), self._clock.monotonic() + GATHER_SECONDS
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
        self._due.discard(partition)
        self._unexposed_bytes.pop(partition, None)
        for _, _, then in self._waiters.pop(partition, []):
            then(error)
