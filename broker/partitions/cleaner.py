"""Drives compaction beside the loop: one log at a time, the dirtiest first, in slices of a few milliseconds.

Compaction computes, and a thread that computes takes the interpreter lock from the loop. So a slice runs on a helper thread for
SLICE_SECONDS, and the next one begins after a pause that is three times as long as the slice took: a quarter of one core at the
most. Measured beside a producer of small requests: see docs/decisions. When a slice ends with an exchange of segments, the loop
makes it, and the pass goes on. A pass that fails is told in the log, and its partition is left alone until the next start: what
was exchanged is good, the rest is as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from math import inf
from typing import Any, NamedTuple

from broker.clock import Clock
from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.storage.cleanable import begin_compaction
from broker.storage.compaction import CompactionPass, Exchange
from broker.storage.filesystem import FileSystem
from broker.storage.key_map import KeyMap
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.cleaner")

SLICE_SECONDS = 0.003
PAUSE_PER_SLICE = 3.0
NEVER = inf

Steps = Generator[Exchange | None, None, None]


class Slice(NamedTuple):
    """How long one took, and what it ended with: an Exchange, ENDED, or nothing."""

    seconds: float
    event: object


class Work:
    """The pass that is under way."""

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
    ) -> None:
        self._partitions = partitions
        self._directory = directory
        self._submit = submit
        self._clock = clock
        self._filesystem = filesystem
        self._config = config
        self._work: Work | None = None
        self._is_stopped = False
        self._left_alone: set[Partition] = set()
        self._backoff = config.cleaner_backoff_ms / 1000
        self.due = clock.monotonic() + self._backoff if config.cleaner_enable else NEVER
        self.passes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def work(self, now: float) -> None:
        """It is `due`: begin a pass, or its next slice."""
        if self._work is None:
            self._work = self._choose()
        if self._work is None:
            self.due = now + self._backoff
        else:
            self.due = NEVER  # until the slice has ended
            work = self._work
            self._submit(lambda: run_slice(work.steps, self._clock), self._slice_ended)

    def stop(self) -> None:
        """Begin nothing more; what is not exchanged yet is left for another start."""
        self.due, self._is_stopped = NEVER, True

    def _choose(self) -> Work | None:
        """The first log that is worth it, the dirtiest before the others."""
        for partition in sorted(self._candidates(), key=self._dirty_share, reverse=True):
            compaction = begin_compaction(
                partition.log,
                self._first_dirty(partition),
                filesystem=self._filesystem,
                producer_offsets=partition.producers.last_offsets(),
                keys=KeyMap(self._config.cleaner_dedupe_bytes_max),
                now_ms=self._clock.now_ms(),
            )
            if compaction is not None:
                return Work(partition, compaction)
        return None

    def _candidates(self) -> Iterator[Partition]:
        for partition in self._partitions:
            log = partition.log
            if log.config.is_compacted and not log.offline_reason and partition not in self._left_alone:
                yield partition

    def _first_dirty(self, partition: Partition) -> int:
        """What the checkpoint says, unless the log has lost its end since then."""
        cleaned = self._directory.cleaned_offset(partition.topic, partition.index)
        return cleaned if cleaned <= partition.end_offset else 0

    def _dirty_share(self, partition: Partition) -> float:
        length = partition.end_offset - partition.log_start_offset
        return (partition.end_offset - self._first_dirty(partition)) / max(length, 1)

    def _slice_ended(self, result: Slice, error: BaseException | None) -> None:
        work = self._work
        assert work is not None, "one slice at a time"
        if work.partition.log.offline_reason:  # deleted, or its disk failed: nothing that could be compacted
            self._put_down(work)
            return
        try:
            if error is not None:
                raise error
            self._go_on(work, result)
        except StorageError as failure:
            self._give_up(work, failure)

    def _go_on(self, work: Work, result: Slice) -> None:
        if isinstance(result.event, Exchange):
            work.partition.log.segments.exchange(result.event.old, result.event.new)
        if result.event is ENDED:
            self._finish(work)
        else:
            self._continue_after(result.seconds * PAUSE_PER_SLICE)

    def _finish(self, work: Work) -> None:
        partition, compaction = work.partition, work.compaction
        self._put_down(work)
        self._directory.write_cleaned_offset(partition.topic, partition.index, compaction.clean_offset)
        self.passes += 1
        self.read_bytes += compaction.read_bytes
        self.written_bytes += compaction.written_bytes
        before = sum(segment.size for segment in compaction.segments)
        logger.info(
            "%s: compacted up to offset %d, %d keys: %d bytes became %d",
            partition.name,
            compaction.clean_offset,
            len(compaction.keys),
            before,
            compaction.written_bytes,
        )

    def _give_up(self, work: Work, error: StorageError) -> None:
        self._put_down(work)
        self._left_alone.add(work.partition)
        logger.error("%s: not compacted until the broker is restarted: %s", work.partition.name, error)

    def _put_down(self, work: Work) -> None:
        work.partition.log.is_compacting = False
        self._work = None
        self._continue_after(0.0)  # perhaps another log wants to be cleaned

    def _continue_after(self, seconds: float) -> None:
        if not self._is_stopped:
            self.due = self._clock.monotonic() + seconds


ENDED = object()


def run_slice(steps: Steps, clock: Clock) -> Slice:
    """Go on for SLICE_SECONDS, to the next exchange or to the end. Any thread."""
    began = clock.monotonic()
    for event in steps:
        took = clock.monotonic() - began
        if event is not None or took >= SLICE_SECONDS:
            return Slice(took, event)
    return Slice(clock.monotonic() - began, ENDED)
