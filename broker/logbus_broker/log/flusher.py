"""Flush before expose, with group commit (the paper, section 3.1).

Records become visible when they are on disk. A flush starts when a request waits for unflushed records, when a segment has been
sealed, or when log.flush.interval.messages or log.flush.interval.ms is reached; it runs on a pool thread, or in the kernel if it
is a single file, one at a time for each partition, and covers everything that arrived before it began. What arrives meanwhile
goes with the next one.

The loop notes what is written but not flushed; the ticket brings it to disk while the loop continues to append; then the loop
moves the flushed offset to where the log ended when the ticket was begun. A file sealed in the meantime waits for the next
ticket, so the flushed offset never passes a gap.

Clients answered by one flush send their next requests shortly after each other: a flush started for the first of these would
leave the others to the next one, and there would be one flush for every request or two. So the next flush waits until as many
requests wait as were answered together, or for a time that is short compared with a flush (GATHER_SECONDS).

`on_flushed` reports what is on disk, and high_watermark.py makes it visible. A failure here affects one partition, which goes
offline. The flusher keeps no reference to a partition that is gone.

Hot path: where every acknowledgement waits for the disk, a lone request is a lone flush. So the state of a partition is a single
object, and no closure is created per flush: measured at a twentieth of the cost of such a request.
"""

from __future__ import annotations

import errno
import heapq
import logging
from collections.abc import Callable, Sequence
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from logbus_broker.clock import Clock
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.health import Histogram
from logbus_broker.log.leader_epochs import LogEpochs
from logbus_broker.log.segment import Segment
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.logs import BROKER_BUG

if TYPE_CHECKING:  # a partition's log creates the tickets
    from logbus_broker.log.partition import Partition

logger = logging.getLogger("broker.flush")

# A flush of busy data takes several of these, and epoll counts in whole milliseconds.
GATHER_SECONDS = 0.001
# Starting one takes 20 us. Two thousand dirty partitions, whose intervals end together or that one DeleteRecords waits for, held
# up the loop for 35 ms when they were started in one turn.
STARTS_PER_TURN_MAX = 150
# The interval may be as long as a topic wants, and may be lowered while records wait for its end: a partition is looked at this
# often at least. That also bounds how long what is left of a deleted partition stays in memory.
LOOK_AGAIN_SECONDS = 5.0

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # fsync itself never fails with these


class FlushPostponed(StorageError):
    """A file or directory could not be opened for its flush, since no descriptors were left. No write has failed: the flush
    must be requested again."""


class FlushTicket:
    """What one flush has to do."""

    __slots__ = ("_directory", "_epochs", "_file", "_filesystem", "active", "end_offset", "end_position", "is_void", "sealed")

    def __init__(
        self,
        filesystem: FileSystem,
        *,
        sealed: Sequence[Segment],
        active: Segment,
        end_offset: int,
        directory: Path | None,
        epochs: LogEpochs | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory  # set if a file was created since the last flush
        self._epochs = epochs  # set if the records have an epoch that is not saved yet
        self._file: OpenFile = active.file
        self.sealed = tuple(sealed)
        self.active = active
        self.end_offset = end_offset
        self.end_position = active.size
        self.is_void = False  # the log was abandoned: its directory may be another log's now, so nothing is written to it

    def run(self) -> None:
        """May run on any thread. StorageError: nothing may be assumed about what is on disk; pass it to `fail_flush`.
        FlushPostponed: call `postpone_flush`."""
        try:
            for segment in self.sealed:
                if not segment.is_durable:  # else only its indexes are missing
                    self._filesystem.sync_data(segment.file)
            self._filesystem.sync_data(self._file)
            if self._directory is not None:
                self._filesystem.sync_directory(self._directory)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise FlushPostponed(f"cannot flush {self.active.directory} yet: {error}") from error
            raise self.failure(error) from error
        if self.is_void:
            return
        for segment in self.sealed:
            self._save_index(segment)
        if self._epochs is not None:
            self._epochs.save()

    @property
    def has_new_names(self) -> bool:
        """Whether it syncs the directory."""
        return self._directory is not None

    @property
    def only_file(self) -> OpenFile | None:
        """The file, if syncing it is all that `run` would do."""
        return None if self.sealed or self._directory is not None or self._epochs is not None else self._file

    def failure(self, error: OSError) -> StorageError:
        """What to pass to `fail_flush` if `only_file` could not be synced."""
        return StorageError(f"cannot flush {self.active.directory}: {error}")

    def _save_index(self, segment: Segment) -> None:
        """Indexes can be rebuilt, so a full disk is not a failure here: `index_saved` stays false and the next flush retries."""
        try:
            segment.save_index()
        except OSError:
            segment.index_saved = False


class _FlushState:
    """The flusher's state for one partition that was written to."""

    __slots__ = (
        "byte_count",
        "dirty_since",
        "gathers",
        "gathers_until",
        "is_in_flight",
        "is_requested",
        "is_scheduled",
        "partition",
        "started",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition: Partition | None = partition  # None once it is gone: this stays in the heap for a while
        self.dirty_since: float | None = None  # None: everything written is flushed, or its flush is in flight
        self.byte_count = 0  # written since then
        self.is_in_flight = False
        self.is_requested = False  # while a flush is in flight: another should follow at once
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

    def __init__(self, thread_pool: ThreadPool, clock: Clock, durations: Histogram) -> None:
        self._thread_pool = thread_pool
        self._clock = clock
        self._durations = durations
        self._states: dict[Partition, _FlushState] = {}
        self._dirty_count = 0
        self._due: dict[Partition, _FlushState] = {}  # none of them is in flight
        self._deadlines: list[tuple[float, int, _FlushState]] = []
        self._sequence = count()
        self.has_news = False  # whether something may be due before the last `next_deadline`
        self.on_flushed: Callable[[Partition, int], None] = lambda partition, byte_count: None
        self.on_failed: Callable[[Partition, StorageError], None] = lambda partition, error: None

    def appended(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were written to the partition's log and are not flushed yet."""
        state = self._states.get(partition)
        if state is None:
            state = self._states[partition] = _FlushState(partition)
        state.byte_count += byte_count
        if state.dirty_since is None:
            state.dirty_since = now = self._clock.monotonic()
            self._dirty_count += 1
            if not state.is_scheduled:
                self._schedule(partition, state, now)
        log = partition.log
        is_rolled = log.unflushed and not log.unflushed[-1].is_durable  # a sealed segment stays open until it is flushed
        if is_rolled or log.end_offset - log.flushed_offset >= log.config.flush_interval_messages:
            self._make_due(partition, state)

    def request(self, partition: Partition) -> None:
        """A request waits: flush at the end of this turn, or as soon as the flush in flight is done."""
        state = self._states.get(partition)
        if state is not None and state.dirty_since is not None:
            self._make_due(partition, state)

    def _make_due(self, partition: Partition, state: _FlushState) -> None:
        if state.is_in_flight:
            state.is_requested = True
        else:
            self._due[partition] = state
            self.has_news = True

    def end_turn(self) -> None:
        """Start the flushes that are requested or due, as many as a turn has room for."""
        deadlines = self._deadlines
        if not deadlines and not self._due:
            return
        now = self._clock.monotonic()
        if deadlines and deadlines[0][0] <= now:
            self._collect_due(now)
        if self._due:
            self._start_due(now)

    def start_due(self) -> None:
        """Start the flushes that are requested before the turn ends: for a caller that expects no more requests in it."""
        if self._due:
            self._start_due(self._clock.monotonic())

    def _start_due(self, now: float) -> None:
        for partition, state in list(islice(self._due.items(), STARTS_PER_TURN_MAX)):  # the next turn starts the others at once
            if len(partition.awaits_visible) >= state.gathers or now >= state.gathers_until:
                self._start(partition, state, now)

    def _schedule(self, partition: Partition, state: _FlushState, now: float) -> None:
        state.is_scheduled = self.has_news = True
        look_at = min(_deadline_of(partition, state), now + LOOK_AGAIN_SECONDS)
        heapq.heappush(self._deadlines, (look_at, next(self._sequence), state))

    def _collect_due(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, state = heapq.heappop(self._deadlines)
            state.is_scheduled = False
            partition = state.partition
            if partition is None or state.dirty_since is None:
                continue
            if _deadline_of(partition, state) <= now:
                self._make_due(partition, state)
            else:
                self._schedule(partition, state, now)  # flushed and written again since, or its interval is longer

    def next_deadline(self) -> float:
        """When there is something to do; at once if a flush can start."""
        self.has_news = False
        if self._due:
            now = self._clock.monotonic()
            return min(
                now if len(partition.awaits_visible) >= state.gathers else max(state.gathers_until, now)
                for partition, state in self._due.items()
            )
        return self._deadlines[0][0] if self._dirty_count and self._deadlines else inf

    def _start(self, partition: Partition, state: _FlushState, now: float) -> None:
        self._due.pop(partition, None)
        if state.dirty_since is not None:
            state.dirty_since = None
            self._dirty_count -= 1
        byte_count, state.byte_count = state.byte_count, 0
        state.gathers = 0
        try:
            ticket = partition.log.begin_flush()
            if ticket is None:
                return
            state.is_in_flight, state.started = True, now

            def ended(_: object, error: BaseException | None) -> None:
                try:
                    self._done(partition, state, ticket, byte_count, error)
                except Exception as failure:  # otherwise its waiters would wait forever
                    self._failed(partition, failure)

            self._thread_pool.flush(ticket, ended)
        except StorageError as error:  # it is offline already
            self.forget(partition)
            self.on_failed(partition, error)
        except Exception as error:
            self._failed(partition, error)

    def _done(
        self, partition: Partition, state: _FlushState, ticket: FlushTicket, byte_count: int, error: BaseException | None
    ) -> None:
        now = self._clock.monotonic()
        self._durations.observe(now - state.started)
        if state.partition is None:
            return  # deleted in the meantime
        state.is_in_flight = False
        log = partition.log
        if error is None:
            try:
                log.finish_flush(ticket)
            except Exception as caught:
                error = caught
        if error is not None or log.offline_reason:
            self._not_done(partition, state, ticket, byte_count, error)
            return
        if state.is_requested:
            state.is_requested = False
            self._due[partition] = state
        state.gathers, state.gathers_until = len(partition.awaits_visible), now + GATHER_SECONDS
        self.on_flushed(partition, byte_count)

    def _not_done(
        self, partition: Partition, state: _FlushState, ticket: FlushTicket, byte_count: int, error: BaseException | None
    ) -> None:
        log = partition.log
        if isinstance(error, FlushPostponed) and not log.offline_reason:
            logger.warning("%s", error)
            log.postpone_flush(ticket)
            state.is_requested = False
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
            "" if is_disk else f" {BROKER_BUG}",
            exc_info=None if is_disk else error,
        )
        self.forget(partition)
        self.on_failed(partition, StorageError(f"{partition.name}: a flush failed: {error}"))

    def overdue(self, before: float) -> list[Partition]:
        """Those whose flush began before that time, and has not ended."""
        return [partition for partition, state in self._states.items() if state.is_in_flight and state.started < before]

    def forget(self, partition: Partition) -> None:
        """The partition is gone or offline."""
        self._due.pop(partition, None)
        state = self._states.pop(partition, None)
        if state is not None:
            if state.dirty_since is not None:
                self._dirty_count -= 1
            state.partition = None  # the entry stays in the heap until its time comes, but refers to nothing


def _deadline_of(partition: Partition, state: _FlushState) -> float:
    assert state.dirty_since is not None, "only dirty ones are scheduled"
    return state.dirty_since + partition.log.config.flush_interval_ms / 1000
