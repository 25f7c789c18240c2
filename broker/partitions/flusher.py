"""Flush before expose, with group commit (the paper, section 3.1).

Records become visible when they are on disk. A flush starts when a request waits for unflushed records, when a segment has been
sealed, or when log.flush.interval.messages or log.flush.interval.ms is reached; it runs on a helper thread, one at a time for
each partition, and covers everything that arrived before it began. What arrives meanwhile goes with the next one.

Clients answered by one flush send their next requests shortly after each other: a flush started for the first of these would
leave the others to the next one, and there would be one flush for every request or two. So the next flush waits until as many
requests wait as were answered together, or for a time that is short compared with a flush (GATHER_SECONDS).

`on_flushed` reports what is on disk, and exposure.py makes it visible. A failure here affects one partition, which goes offline.
The flusher keeps no reference to a partition that is gone.

Hot path: where every acknowledgement waits for the disk, a lone request is a lone flush. So the state of a partition is a single
object, and no closure is created per flush: measured at a twentieth of the cost of such a request.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from math import inf

from broker.clock import Clock
from broker.counters import Histogram
from broker.errors import StorageError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.storage.flush import FlushPostponed, FlushTicket

logger = logging.getLogger("broker.flush")

# A flush of busy data takes several of these, and epoll counts in whole milliseconds.
GATHER_SECONDS = 0.001
# Starting one takes 20 us. Two thousand dirty partitions, whose intervals end together or that one DeleteRecords waits for, held
# up the loop for 35 ms when they were started in one turn.
STARTS_PER_TURN_MAX = 150
# The interval may be as long as a topic wants, and may be lowered while records wait for its end: a partition is looked at this
# often at least. That also bounds how long what is left of a deleted partition stays in memory.
LOOK_AGAIN_SECONDS = 5.0


class _Unflushed:
    """The flusher's state for one partition that was written to."""

    __slots__ = (
        "byte_count",
        "dirty_since",
        "gathers",
        "gathers_until",
        "is_in_flight",
        "is_scheduled",
        "is_wanted",
        "partition",
        "started",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition: Partition | None = partition  # None once it is gone: this stays in the heap for a while
        self.dirty_since: float | None = None  # None: everything written is flushed, or its flush is in flight
        self.byte_count = 0  # written since then
        self.is_in_flight = False
        self.is_wanted = False  # while a flush is in flight: another should follow at once
        self.is_scheduled = False  # there is an entry in the heap
        self.started = 0.0
        self.gathers = 0  # how many waiting requests the next flush waits for, and until when
        self.gathers_until = 0.0


class Flusher:
    """Tracks which partitions have unflushed records.

    The cost of a turn depends on what is due in it, not on how many partitions are dirty: those due are in `_due`; a heap says
    when to look at the others. It holds a partition at most once, and may hold one that has been flushed since: that is checked
    when its time comes.
    """

    def __init__(self, helpers: Helpers, clock: Clock, durations: Histogram) -> None:
        self._helpers = helpers
        self._clock = clock
        self._durations = durations
        self._known: dict[Partition, _Unflushed] = {}
        self._dirty_count = 0
        self._due: dict[Partition, _Unflushed] = {}  # none of them is in flight
        self._deadlines: list[tuple[float, int, _Unflushed]] = []
        self._sequence = count()
        self.has_news = False  # whether something may be due before the last `next_deadline`
        self.on_flushed: Callable[[Partition, int], None] = lambda partition, byte_count: None
        self.on_failed: Callable[[Partition, StorageError], None] = lambda partition, error: None

    def appended(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were written to the partition's log and are not flushed yet."""
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = _Unflushed(partition)
        known.byte_count += byte_count
        if known.dirty_since is None:
            known.dirty_since = now = self._clock.monotonic()
            self._dirty_count += 1
            if not known.is_scheduled:
                self._schedule(partition, known, now)
        log = partition.log
        is_rolled = log.unflushed and not log.unflushed[-1].is_durable  # a sealed segment stays open until it is flushed
        if is_rolled or log.end_offset - log.flushed_offset >= log.config.flush_interval_messages:
            self._make_due(partition, known)

    def want(self, partition: Partition) -> None:
        """A request waits: flush at the end of this turn, or as soon as the flush in flight is done."""
        known = self._known.get(partition)
        if known is not None and known.dirty_since is not None:
            self._make_due(partition, known)

    def _make_due(self, partition: Partition, known: _Unflushed) -> None:
        if known.is_in_flight:
            known.is_wanted = True
        else:
            self._due[partition] = known
            self.has_news = True

    def end_turn(self) -> None:
        """Start the flushes that are wanted or due, as many as a turn has room for."""
        deadlines = self._deadlines
        if not deadlines and not self._due:
            return
        now = self._clock.monotonic()
        if deadlines and deadlines[0][0] <= now:
            self._collect_due(now)
        if self._due:
            self._start_due(now)

    def start_due(self) -> None:
        """Start the flushes that are wanted before the turn ends: for a caller that knows nothing more will arrive in it."""
        if self._due:
            self._start_due(self._clock.monotonic())

    def _start_due(self, now: float) -> None:
        for partition, known in list(islice(self._due.items(), STARTS_PER_TURN_MAX)):  # the next turn starts the others at once
            if len(partition.awaits_visible) >= known.gathers or now >= known.gathers_until:
                self._start(partition, known, now)

    def _schedule(self, partition: Partition, known: _Unflushed, now: float) -> None:
        known.is_scheduled = self.has_news = True
        look_at = min(_deadline_of(partition, known), now + LOOK_AGAIN_SECONDS)
        heapq.heappush(self._deadlines, (look_at, next(self._sequence), known))

    def _collect_due(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, known = heapq.heappop(self._deadlines)
            known.is_scheduled = False
            partition = known.partition
            if partition is None or known.dirty_since is None:
                continue
            if _deadline_of(partition, known) <= now:
                self._make_due(partition, known)
            else:
                self._schedule(partition, known, now)  # flushed and written again since, or its interval is longer

    def next_deadline(self) -> float:
        """When there is something to do; at once if a flush can start."""
        self.has_news = False
        if self._due:
            now = self._clock.monotonic()
            return min(
                now if len(partition.awaits_visible) >= known.gathers else max(known.gathers_until, now)
                for partition, known in self._due.items()
            )
        return self._deadlines[0][0] if self._dirty_count and self._deadlines else inf

    def _start(self, partition: Partition, known: _Unflushed, now: float) -> None:
        self._due.pop(partition, None)
        if known.dirty_since is not None:
            known.dirty_since = None
            self._dirty_count -= 1
        byte_count, known.byte_count = known.byte_count, 0
        known.gathers = 0
        try:
            ticket = partition.log.begin_flush()
            if ticket is None:
                return
            known.is_in_flight, known.started = True, now
            self._helpers.flush(ticket, partial(self._done, partition, known, ticket, byte_count))
        except StorageError as error:  # it is offline already
            self.forget(partition)
            self.on_failed(partition, error)
        except Exception as error:
            self._failed(partition, error)

    def _done(
        self,
        partition: Partition,
        known: _Unflushed,
        ticket: FlushTicket,
        byte_count: int,
        _: object,
        error: BaseException | None,
    ) -> None:
        try:
            now = self._clock.monotonic()
            self._durations.observe(now - known.started)
            if known.partition is None:
                return  # deleted in the meantime
            known.is_in_flight = False
            log = partition.log
            if error is None:
                try:
                    log.finish_flush(ticket)
                except Exception as caught:
                    error = caught
            if error is not None or log.offline_reason:
                self._not_done(partition, known, ticket, byte_count, error)
                return
            if known.is_wanted:
                known.is_wanted = False
                self._due[partition] = known
            known.gathers, known.gathers_until = len(partition.awaits_visible), now + GATHER_SECONDS
            self.on_flushed(partition, byte_count)
        except Exception as failure:  # otherwise its waiters would wait forever
            self._failed(partition, failure)

    def _not_done(
        self, partition: Partition, known: _Unflushed, ticket: FlushTicket, byte_count: int, error: BaseException | None
    ) -> None:
        log = partition.log
        if isinstance(error, FlushPostponed) and not log.offline_reason:
            logger.warning("%s", error)
            log.postpone_flush(ticket)
            known.is_wanted = False
            self.appended(partition, byte_count)
            self._due.pop(partition, None)  # retried after the interval; its waiters keep waiting
            return
        if error is not None:
            log.fail_flush(ticket, error)
        self._failed(partition, error or StorageError(log.offline_reason))

    def _failed(self, partition: Partition, error: BaseException) -> None:
        """No flush of it will follow: all its waiters get an error."""
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
        self.forget(partition)
        self.on_failed(partition, StorageError(f"{partition.name}: a flush failed: {error}"))

    def forget(self, partition: Partition) -> None:
        """The partition is gone or offline."""
        self._due.pop(partition, None)
        known = self._known.pop(partition, None)
        if known is not None:
            if known.dirty_since is not None:
                self._dirty_count -= 1
            known.partition = None  # the entry stays in the heap until its time comes, but refers to nothing


def _deadline_of(partition: Partition, known: _Unflushed) -> float:
    assert known.dirty_since is not None, "only dirty ones are scheduled"
    return known.dirty_since + partition.log.config.flush_interval_ms / 1000
