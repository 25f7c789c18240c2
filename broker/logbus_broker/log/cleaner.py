"""Drives compaction off the loop: one log at a time, the dirtiest first, in slices of a few milliseconds.

Compaction is CPU-bound, and a busy thread takes the interpreter lock from the loop. So a slice runs on a pool thread for
SLICE_SECONDS, and the next one begins after a pause three times as long as the slice took: a quarter of one core at most.
Measured alongside a producer of small requests: see docs/decisions. When a slice ends with an exchange of segments, the loop
makes it, and the pass continues.

A pass that fails, for whatever reason, affects its partition alone: what was exchanged is good, the rest is as it was. The
partition rests before it is retried, each time twice as long, and health shows the failure until a pass ends, or until there is
nothing left to retry: the topic is deleted or no longer compacted, or the log is offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from logbus_broker.clock import Clock
from logbus_broker.filesystem import FileSystem
from logbus_broker.health import Health
from logbus_broker.log.background_tasks import PAUSE_PER_SLICE, SLICE_SECONDS
from logbus_broker.log.compaction import CompactionPass, Exchange, OffsetMap
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.manager import PartitionManager
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment import Segment
from logbus_broker.setting_parsers import INT64_MAX
from logbus_broker.settings import BrokerConfig, LogConfig

logger = logging.getLogger("broker.cleaner")

# A full disk usually has room again, or a descriptor is free, within minutes; a permanent failure costs one read of the log's
# dirty part per hour.
REST_SECONDS_MIN = 60.0
REST_SECONDS_MAX = 3_600.0
NEVER = inf
ENDED = object()  # how a pass ended


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dirt:
    """What a pass would find."""

    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # a record has waited for longer than max.compaction.lag.ms

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def wants_cleaning(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def _compactable_segments(
    segments: Iterable[Segment], unflushed: Collection[Segment], *, config: LogConfig, now_ms: int, limit_offset: int
) -> Iterator[Segment]:
    """The leading segments that are sealed, on disk, not beyond `limit_offset`, and not younger than
    min.compaction.lag.ms."""
    for segment in segments:
        if segment.end_offset is None or segment in unflushed or segment.end_offset > limit_offset:
            return
        if config.compaction_lag_ms_min > 0 and segment.largest_timestamp > now_ms - config.compaction_lag_ms_min:
            return
        yield segment


def _measure_dirt(segments: Sequence[Segment], first_dirty_offset: int, *, config: LogConfig, now_ms: int) -> _Dirt:
    """The dirt in the segments that may be compacted."""
    dirty = [segment for segment in segments if (segment.end_offset or 0) > first_dirty_offset]
    return _Dirt(
        clean_bytes=sum(segment.size for segment in segments) - sum(segment.size for segment in dirty),
        dirty_bytes=sum(segment.size for segment in dirty),
        is_overdue=bool(dirty) and _is_overdue(dirty[0], config.compaction_lag_ms_max, now_ms),
    )


def _is_overdue(segment: Segment, lag_ms_max: int, now_ms: int) -> bool:
    if lag_ms_max == INT64_MAX:
        return False
    first = segment.first_header()
    return first is not None and now_ms - first.max_timestamp > lag_ms_max


def begin_compaction(
    log: PartitionLog,
    first_dirty_offset: int,
    *,
    filesystem: FileSystem,
    producer_offsets: frozenset[int],
    offset_map: OffsetMap,
    now_ms: int,
    limit_offset: int | None = None,
) -> CompactionPass | None:
    """A pass over what may be compacted, or None if it is not worth it yet, or if the log is being truncated or waits for that:
    what may still be truncated must not be compacted, so nothing beyond `limit_offset`, the end of what consumers may see, is;
    without one, nothing unflushed. Nothing else changes the log's sealed segments until `log.end_compaction`, which must be
    called however the pass ends; if it leaves an exchange unfinished, the next pass begins by finishing it."""
    if log.is_truncating or (log.wants_quiet and log.unfinished_exchange is None):
        return None
    limit_offset = log.flushed_offset if limit_offset is None else limit_offset
    segments = tuple(
        _compactable_segments(log.segments, log.unflushed, config=log.config, now_ms=now_ms, limit_offset=limit_offset)
    )
    dirt = _measure_dirt(segments, first_dirty_offset, config=log.config, now_ms=now_ms)
    if not dirt.wants_cleaning(log.config) and log.unfinished_exchange is None:
        return None
    directory = filesystem.pin(log.directory)
    log.is_compacting = True
    return CompactionPass(
        filesystem=filesystem,
        directory=directory,
        segments=segments,
        first_dirty_offset=max(first_dirty_offset, log.log_start_offset),
        producer_offsets=producer_offsets,
        epoch_starts=log.epochs.written.starts(),
        config=log.config,
        now_ms=now_ms,
        offset_map=offset_map,
        unfinished=log.unfinished_exchange,
    )


Steps = Generator[Exchange | None, None, None]


class _Slice(NamedTuple):
    """How long a slice took, and what it ended with: an Exchange, ENDED, or nothing."""

    seconds: float
    event: object


class _Rest(NamedTuple):
    """A partition whose pass failed: until when it is left alone, and the length of that pause."""

    until: float
    seconds: float


class _Work(NamedTuple):
    """The pass in progress."""

    partition: Partition
    compaction: CompactionPass
    steps: Steps


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
        self._work: _Work | None = None
        self._is_stopped = False
        self._health = health
        self._rests: dict[Partition, _Rest] = {}
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

    def _choose(self) -> _Work | None:
        """The first log worth compacting, in order of dirtiness."""
        self._forget_rests()
        for partition in sorted(self._candidates(), key=self._dirty_share, reverse=True):
            try:
                compaction = self._begin(partition)
            except Exception as error:
                self._rest(partition, error)
                continue
            if compaction is not None:
                return _Work(partition, compaction, compaction.steps())
            self._end_rest(partition)
        return None

    def _begin(self, partition: Partition) -> CompactionPass | None:
        return begin_compaction(
            partition.log,
            self._first_dirty(partition),
            filesystem=self._filesystem,
            producer_offsets=partition.producers.last_offsets(),
            offset_map=OffsetMap(self._config.cleaner_dedupe_bytes_max),
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
        self._rests[partition] = _Rest(self._clock.monotonic() + seconds, seconds)
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
        cleaned = self._directory.checkpoints.cleaned_offset(partition.topic, partition.index)
        return cleaned if cleaned <= partition.end_offset else 0

    def _dirty_share(self, partition: Partition) -> float:
        length = partition.end_offset - partition.log_start_offset
        return (partition.end_offset - self._first_dirty(partition)) / max(length, 1)

    def _slice_done(self, result: _Slice, error: BaseException | None) -> None:
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
                self._end_pass(work)
            self._rest(work.partition, failure)

    def _slice_ended(self, work: _Work, result: _Slice, error: BaseException | None) -> None:
        if work.partition.log.offline_reason:  # deleted, or its disk failed: nothing left to compact
            self._end_pass(work)
        elif error is not None:
            self._end_pass(work)
            self._rest(work.partition, error)
        else:
            self._advance_pass(work, result)

    def _advance_pass(self, work: _Work, result: _Slice) -> None:
        log = work.partition.log
        if isinstance(result.event, Exchange):
            log.segments.exchange(result.event.old, result.event.new)
            log.unfinished_exchange = result.event  # until the next slice has given the new segment its final name
        if result.event is ENDED:
            self._finish(work)
        elif log.wants_quiet and log.unfinished_exchange is None:
            self._end_pass(work)  # what is exchanged is good; a later pass does the rest
        else:
            self._continue_after(result.seconds * PAUSE_PER_SLICE)

    def _finish(self, work: _Work) -> None:
        partition, compaction = work.partition, work.compaction
        self._end_pass(work)
        # Noted only once every exchange is made: a crash before this line costs another pass over what is already clean; a crash
        # after a premature checkpoint would leave old values of keys in the log for good.
        self._directory.checkpoints.note_cleaned_offset(partition.topic, partition.index, compaction.clean_offset)
        self._write_cleaned_offsets()
        self._end_rest(partition)
        before = sum(segment.size for segment in compaction.segments)
        logger.info(
            "%s: compacted up to offset %d, %d keys: %d bytes became %d",
            partition.name,
            compaction.clean_offset,
            len(compaction.offset_map),
            before,
            compaction.written_bytes,
        )

    def _end_pass(self, work: _Work) -> None:
        self._work = None
        self._continue_after(0.0)  # perhaps another log needs cleaning
        work.partition.log.end_compaction()

    def _continue_after(self, seconds: float) -> None:
        if not self._is_stopped:
            self.due = self._clock.monotonic() + seconds


def _trouble_of(partition: Partition) -> str:
    return f"compaction of {partition.name}"


def run_slice(steps: Steps, clock: Clock, seconds: float = SLICE_SECONDS) -> _Slice:
    """Run for `seconds`, or to the next exchange or the end if that is earlier. Any thread."""
    began = clock.monotonic()
    for event in steps:
        took = clock.monotonic() - began
        if event is not None or took >= seconds:
            return _Slice(took, event)
    return _Slice(clock.monotonic() - began, ENDED)
