"""Drives compaction off the loop: one log at a time, the dirtiest first, in slices of a few milliseconds.

Compaction is CPU-bound, and a busy thread takes the interpreter lock from the loop. So a slice runs on a helper thread for
SLICE_SECONDS, and the next one begins after a pause three times as long as the slice took: a quarter of one core at most.
Measured alongside a producer of small requests: see docs/decisions. When a slice ends with an exchange of segments, the loop
makes it, and the pass continues.

A pass that fails, for whatever reason, affects its partition alone: what was exchanged is good, the rest is as it was. The
partition rests before it is retried, each time twice as long, and health shows the failure until a pass ends, or until there is
nothing left to retry: the topic is deleted or no longer compacted, or the log is offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from math import inf
from typing import Any, NamedTuple

from broker.chores import PAUSE_PER_SLICE, SLICE_SECONDS
from broker.clock import Clock
from broker.config.settings import BrokerConfig
from broker.health import Health
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.storage.cleanable import begin_compaction
from broker.storage.compaction import CompactionPass, Exchange
from broker.storage.filesystem import FileSystem
from broker.storage.key_map import KeyMap
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.cleaner")

# A full disk usually has room again, or a descriptor is free, within minutes; a permanent failure costs one read of the log's
# dirty part per hour.
REST_SECONDS_MIN = 60.0
REST_SECONDS_MAX = 3_600.0
NEVER = inf

Steps = Generator[Exchange | None, None, None]


class Slice(NamedTuple):
    """How long a slice took, and what it ended with: an Exchange, ENDED, or nothing."""

    seconds: float
    event: object


class Rest(NamedTuple):
    """A partition whose pass failed: until when it is left alone, and the length of that pause."""

    until: float
    seconds: float


class Work:
    """The pass in progress."""

    __slots__ = ("compaction", "partition", "steps")

    def __init__(self, partition: Partition, compaction: CompactionPass) -> None:
        self.partition = partition
        self.compaction = compaction
        self.steps: Steps = compaction.steps()


class LogCleaner:
    """All methods run on the loop's thread."""

    def __init__(
        self,
        partitions: PartitionManager,
        directory: LogDirectory,
        submit: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None],
        clock: Clock,
        filesystem: FileSystem,
        config: BrokerConfig,
        health: Health,
        write_cleaned_offsets: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._write_cleaned_offsets = write_cleaned_offsets
        self._directory = directory
        self._submit = submit
        self._clock = clock
        self._filesystem = filesystem
        self._config = config
        self._work: Work | None = None
        self._is_stopped = False
        self._health = health
        self._rests: dict[Partition, Rest] = {}
        self._backoff = config.cleaner_backoff_ms / 1000
        self.due = clock.monotonic() + self._backoff if config.cleaner_enable else NEVER

    def work(self, now: float) -> None:
        """`due` has been reached: begin a pass, or its next slice."""
        if self._work is None:
            self._work = self._choose()
        if self._work is None:
            self.due = now + self._backoff
        else:
            self.due = NEVER  # until the slice has ended
            work = self._work
            # If a truncation waits for the log, continue only to the next point where the pass can be dropped.
            seconds = 0.0 if work.partition.log.wants_quiet else SLICE_SECONDS
            self._submit(lambda: run_slice(work.steps, self._clock, seconds), self._slice_done)

    def stop(self) -> None:
        """Begin nothing more; what is not exchanged yet is left for the next start."""
        self.due, self._is_stopped = NEVER, True

    def _choose(self) -> Work | None:
        """The first log worth compacting, in order of dirtiness."""
        self._forget_rests()
        for partition in sorted(self._candidates(), key=self._dirty_share, reverse=True):
            try:
                compaction = self._begin(partition)
            except Exception as error:
                self._rest(partition, error)
                continue
            if compaction is not None:
                return Work(partition, compaction)
            self._end_rest(partition)
        return None

    def _begin(self, partition: Partition) -> CompactionPass | None:
        return begin_compaction(
            partition.log,
            self._first_dirty(partition),
            filesystem=self._filesystem,
            producer_offsets=partition.producers.last_offsets(),
            keys=KeyMap(self._config.cleaner_dedupe_bytes_max),
            now_ms=self._clock.now_ms(),
            limit_offset=partition.visible_offset,
        )

    def _candidates(self) -> Iterator[Partition]:
        now = self._clock.monotonic()
        for partition in self._partitions:
            rest = self._rests.get(partition)
            if (rest is None or rest.until <= now) and self._has_dirt(partition):
                yield partition

    def _rest(self, partition: Partition, error: BaseException) -> None:
        """Its pass failed: leave it alone for a while."""
        before = self._rests.get(partition)
        seconds = min(before.seconds * 2, REST_SECONDS_MAX) if before is not None else REST_SECONDS_MIN
        self._rests[partition] = Rest(self._clock.monotonic() + seconds, seconds)
        self._health.fails(_trouble_of(partition), error)

    def _end_rest(self, partition: Partition) -> None:
        if self._rests.pop(partition, None) is not None:
            self._health.succeeds(_trouble_of(partition))

    def _forget_rests(self) -> None:
        """End the rests of partitions that will not be retried."""
        for partition in list(self._rests):
            if not self._partitions.holds(partition) or not self._has_dirt(partition):
                self._end_rest(partition)

    def _has_dirt(self, partition: Partition) -> bool:
        """Whether the log is worth a closer look. Must be cheap: it is called for ten thousand logs each time."""
        log = partition.log
        if not log.config.is_compacted or log.offline_reason:
            return False
        return log.unfinished_exchange is not None or log.segments.active.base_offset > self._first_dirty(partition)

    def _first_dirty(self, partition: Partition) -> int:
        """The checkpointed offset, unless the log has lost its end since then."""
        cleaned = self._directory.cleaned_offset(partition.topic, partition.index)
        return cleaned if cleaned <= partition.end_offset else 0

    def _dirty_share(self, partition: Partition) -> float:
        length = partition.end_offset - partition.log_start_offset
        return (partition.end_offset - self._first_dirty(partition)) / max(length, 1)

    def _slice_done(self, result: Slice, error: BaseException | None) -> None:
        """Whatever goes wrong with a slice's result, `due` must be set again: nothing else does that."""
        work = self._work
        assert work is not None, "one slice at a time"
        log, event = work.partition.log, None
        if error is None:
            log.unfinished_exchange, event = None, result.event  # the slice has finished it first
        try:
            self._slice_ended(work, result, error)
        except Exception as failure:
            # The loop failed before the new segment replaced the old ones. Its file is withdrawn, or the next start would find
            # it and complete an exchange that was never made.
            if isinstance(event, Exchange) and log.unfinished_exchange is not event:
                work.compaction.withdraw(event)
            if work is self._work:
                self._put_down(work)
            self._rest(work.partition, failure)

    def _slice_ended(self, work: Work, result: Slice, error: BaseException | None) -> None:
        if work.partition.log.offline_reason:  # deleted, or its disk failed: nothing left to compact
            self._put_down(work)
        elif error is not None:
            self._put_down(work)
            self._rest(work.partition, error)
        else:
            self._go_on(work, result)

    def _go_on(self, work: Work, result: Slice) -> None:
        log = work.partition.log
        if isinstance(result.event, Exchange):
            log.segments.exchange(result.event.old, result.event.new)
            log.unfinished_exchange = result.event  # until the next slice has given the new segment its final name
        if result.event is ENDED:
            self._finish(work)
        elif log.wants_quiet and log.unfinished_exchange is None:
            self._put_down(work)  # what is exchanged is good; a later pass does the rest
        else:
            self._continue_after(result.seconds * PAUSE_PER_SLICE)

    def _finish(self, work: Work) -> None:
        partition, compaction = work.partition, work.compaction
        self._put_down(work)
        # Noted only once every exchange is made: a crash before this line costs another pass over what is already clean; a crash
        # after a premature checkpoint would leave old values of keys in the log for good.
        self._directory.note_cleaned_offset(partition.topic, partition.index, compaction.clean_offset)
        self._write_cleaned_offsets()
        self._end_rest(partition)
        before = sum(segment.size for segment in compaction.segments)
        logger.info(
            "%s: compacted up to offset %d, %d keys: %d bytes became %d",
            partition.name,
            compaction.clean_offset,
            len(compaction.keys),
            before,
            compaction.written_bytes,
        )

    def _put_down(self, work: Work) -> None:
        self._work = None
        self._continue_after(0.0)  # perhaps another log needs cleaning
        work.partition.log.end_compaction()

    def _continue_after(self, seconds: float) -> None:
        if not self._is_stopped:
            self.due = self._clock.monotonic() + seconds


def _trouble_of(partition: Partition) -> str:
    return f"compaction of {partition.name}"


ENDED = object()


def run_slice(steps: Steps, clock: Clock, seconds: float = SLICE_SECONDS) -> Slice:
    """Run for `seconds`, or to the next exchange or the end if that is earlier. Any thread."""
    began = clock.monotonic()
    for event in steps:
        took = clock.monotonic() - began
        if event is not None or took >= seconds:
            return Slice(took, event)
    return Slice(clock.monotonic() - began, ENDED)
