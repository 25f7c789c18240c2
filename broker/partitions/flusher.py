"""Flush before expose, with group commit (the paper, section 3.1).

Records become visible when they are on disk. A flush starts when somebody waits for what is not flushed, or when
log.flush.interval.messages or log.flush.interval.ms bound it; it runs on a helper thread, one at a time for each partition,
and takes all that arrived until it began. What arrives meanwhile goes with the next one.

Those whom a flush has answered come back, one shortly after the other: a flush that began with the first of them would leave the
others to the next one, and the disk would turn for every request or two. So the next flush waits until as many wait as were
answered together, or for a moment that is short beside a flush (GATHER_SECONDS).

Whatever fails here fails for one partition, which goes offline, or for one of those who wait: the others are told all the same.
A partition that is gone is not held by anything of this.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count, islice
from typing import Any

from broker.clock import Clock
from broker.counters import Histogram
from broker.errors import StorageError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.storage.flush import FlushPostponed, FlushTicket

logger = logging.getLogger("broker.flush")

WhenVisible = Callable[[StorageError | None], None]
_Deadline = list[Any]  # when, a number that no other has, and the partition; None where it was forgotten meanwhile

# A flush of busy data takes several of these, and epoll counts in whole milliseconds.
GATHER_SECONDS = 0.001
# To start one takes 20 us. Two thousand dirty partitions, whose interval ends together or that one DeleteRecords waits for, held
# everybody for 35 ms when they were started in one turn.
STARTS_PER_TURN_MAX = 150


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
        self._deadlines: list[_Deadline] = []
        self._scheduled: dict[Partition, _Deadline] = {}  # those in the heap
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
        """Start the flushes that are wanted or due, as many as a turn has room for."""
        if self._deadlines and self._deadlines[0][0] <= self._clock.monotonic():
            self._collect_due(self._clock.monotonic())
        if self._due:
            startable = self._due - self._in_flight
            if len(startable) > STARTS_PER_TURN_MAX:  # the next turn comes at once
                startable = set(islice(startable, STARTS_PER_TURN_MAX))
            for partition in startable:
                if partition not in self._gathering or self._has_gathered(partition):
                    self._start(partition)

    def _has_gathered(self, partition: Partition) -> bool:
        count, until = self._gathering[partition]
        if len(self._waiters.get(partition, ())) < count and self._clock.monotonic() < until:
            return False
        del self._gathering[partition]
        return True

    def _schedule(self, partition: Partition) -> None:
        deadline = self._scheduled[partition] = [self._deadline_of(partition), next(self._sequence), partition]
        heapq.heappush(self._deadlines, deadline)

    def _deadline_of(self, partition: Partition) -> float:
        return self._dirty_since[partition] + partition.log.config.flush_interval_ms / 1000

    def _collect_due(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            partition = self._unschedule_first()
            if partition is None or partition not in self._dirty_since:
                continue
            if self._deadline_of(partition) <= now:
                self._due.add(partition)
            else:
                self._schedule(partition)  # flushed and written again since

    def _unschedule_first(self) -> Partition | None:
        partition: Partition | None = heapq.heappop(self._deadlines)[2]
        if partition is not None:
            del self._scheduled[partition]
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
            if ticket is None:
                return
            self._in_flight.add(partition)
            started = self._clock.monotonic()

            def done(_: object, error: BaseException | None) -> None:
                self._durations.observe(self._clock.monotonic() - started)
                try:
                    self._done(partition, ticket, byte_count, error)
                except Exception as failure:  # whoever waits would wait for ever
                    self._failed(partition, failure)

            self._helpers.flush(ticket, done)
        except StorageError as error:  # it is offline already
            self.forget(partition, error)
            self.on_offline(partition)
        except Exception as error:
            self._failed(partition, error)

    def _done(self, partition: Partition, ticket: FlushTicket, byte_count: int, error: BaseException | None) -> None:
        if partition not in self._in_flight:
            return  # forgotten meanwhile: deleted
        self._in_flight.discard(partition)
        log = partition.log
        if isinstance(error, FlushPostponed) and not log.offline_reason:
            logger.warning("%s", error)
            log.postpone_flush(ticket)
            self.appended(partition, byte_count)  # so it is tried again after the interval; who waits, waits on
            return
        if error is None:
            try:
                log.finish_flush(ticket)
            except Exception as caught:
                error = caught
        if error is not None or log.offline_reason:
            if error is not None:
                log.fail_flush(ticket, error)
            self._failed(partition, error or StorageError(log.offline_reason))
            return
        self._tell_waiters(partition)
        try:
            self.on_exposed(partition, byte_count)
        except Exception:
            logger.exception("%s: who waits for records could not be told; this is a defect of the broker", partition.name)

    def _failed(self, partition: Partition, error: BaseException) -> None:
        """No flush of it will come any more: everybody who waits is told."""
        if not partition.log.offline_reason:
            partition.log.go_offline(f"{partition.name}: a flush failed unexpectedly: {error!r}")
        is_disk = isinstance(error, StorageError)
        logger.critical(
            "%s: a flush failed (%s): the partition is offline until the broker is restarted%s",
            partition.name,
            error,
            "" if is_disk else "; this is a defect of the broker",
            exc_info=None if is_disk else error,
        )
        self.forget(partition, StorageError(f"{partition.name}: a flush failed: {error}"))
        self.on_offline(partition)

    def _tell_waiters(self, partition: Partition) -> None:
        waiters = self._waiters.get(partition)
        if waiters is None:
            return
        self._gathering[partition] = len(waiters), self._clock.monotonic() + GATHER_SECONDS
        while waiters and waiters[0][0] <= partition.visible_offset:
            _tell(partition, heapq.heappop(waiters)[2], None)
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
        self._gathering.pop(partition, None)
        deadline = self._scheduled.pop(partition, None)
        if deadline is not None:
            deadline[2] = None  # it stays in the heap until its time has come, and holds nothing
        for _, _, then in self._waiters.pop(partition, []):
            _tell(partition, then, error)


def _tell(partition: Partition, then: WhenVisible, error: StorageError | None) -> None:
    try:
        then(error)
    except Exception:
        logger.exception("%s: somebody who waited could not be answered; this is a defect of the broker", partition.name)
