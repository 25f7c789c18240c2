"""Deletes old segments: which may go, and in which turn.

The active segment always stays. If all of it is too old it is sealed, as in Kafka, and deleted in the next round: so a topic
that is no longer written to becomes empty.

Only the loop changes a log's list of segments, so retention runs there, and renaming files takes a while: a round over 2,000
partitions that dropped three segments each was measured to hold the loop for 1.2 seconds when it ran in one piece. So a slice
ends after SLICE_SECONDS, and the next one begins after a pause three times as long. After SEGMENTS_PER_STEP segments a partition
goes to the back of the queue, so one long log is processed in slices as well. The renamed files are removed by a thread, one
slice's at a time.

A disk error affects that partition only: it is retried in the next round, and health shows it until then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from logbus_broker.clock import Clock, UnhurriedClock
from logbus_broker.health import Health
from logbus_broker.log.background_tasks import PAUSE_PER_SLICE, SLICE_SECONDS
from logbus_broker.log.manager import PartitionManager
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment import Segment
from logbus_broker.settings import BrokerConfig, LogConfig

logger = logging.getLogger("broker.log")

SEGMENTS_PER_STEP = 8


def apply_retention(log: PartitionLog, now_ms: int, *, segments_max: int | None = None, limit_offset: int | None = None) -> int:
    """Delete the old segments that the configuration does not keep, at most `segments_max` of them; returns how many. Those that
    reach beyond `limit_offset`, the end of what consumers may see, stay; without one, those that are not flushed. While a log
    is being compacted or truncated, its segments must not change: nothing is deleted until later."""
    log.require_online()
    if log.is_compacting or log.is_truncating:
        return 0
    limit_offset = log.flushed_offset if limit_offset is None else limit_offset
    deletable = _expendable_segments(
        tuple(log.segments),
        config=log.config,
        log_start_offset=log.log_start_offset,
        size_bytes=log.segments.size_bytes,
        now_ms=now_ms,
    )
    count = 0
    for segment in islice(deletable, segments_max):
        if segment in log.unflushed or (segment.end_offset or 0) > limit_offset:
            return count
        log.drop_first()
        count += 1
    active = log.segments.active
    if len(log.segments) == 1 and active.size and log.config.is_trimmed and _is_expired(active, log.config.retention_ms, now_ms):
        log.roll()
    return count


def _expendable_segments(
    segments: Iterable[Segment], *, config: LogConfig, log_start_offset: int, size_bytes: int, now_ms: int
) -> Iterator[Segment]:
    """The oldest segments, in order, up to the first that must stay. The active one always stays."""
    excess_bytes = size_bytes - config.retention_bytes if config.retention_bytes >= 0 and config.is_trimmed else 0
    for segment in segments:
        if segment.end_offset is None:
            return
        is_before_start = segment.end_offset <= log_start_offset
        is_too_old = config.is_trimmed and _is_expired(segment, config.retention_ms, now_ms)
        if not (is_before_start or excess_bytes >= segment.size > 0 or is_too_old):
            return
        yield segment
        excess_bytes -= segment.size


def _is_expired(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    """Whether the newest record is older than `retention_ms`. A segment without timestamps, or with one from the future, which
    would keep it forever, is as old as its file."""
    if retention_ms < 0:
        return False
    youngest_ms = segment.largest_timestamp
    if not 0 <= youngest_ms <= now_ms:
        youngest_ms = segment.modified_ms
    return now_ms - youngest_ms > retention_ms


class LogRetention:
    """Drives rounds over all partitions. All methods run on the loop's thread."""

    def __init__(
        self,
        partitions: PartitionManager,
        remove_files: Callable[[list[Path]], None],
        clock: Clock,
        config: BrokerConfig,
        health: Health,
    ) -> None:
        self._partitions = partitions
        self._remove_files = remove_files
        self._clock = clock
        self._health = health
        self._troubled: list[Partition] = []  # in the current round, or the last one
        self._retention_clock = UnhurriedClock(clock)
        self._interval = config.retention_check_interval_ms / 1000
        self._left: deque[Partition] = deque()  # still to do in the current round
        self._round_now_ms = 0
        self._next_round = self.due = clock.monotonic() + self._interval

    def work(self, now: float) -> None:
        """`due` has been reached: begin a round, or its next slice."""
        if not self._left:
            self._forget_troubles()
            self._left.extend(self._partitions)
            self._round_now_ms = self._retention_clock.now_ms()
            self._next_round = now + self._interval
        ended = self._slice(now)
        self.due = ended + (ended - now) * PAUSE_PER_SLICE if self._left else max(self._next_round, ended)

    def _slice(self, began: float) -> float:
        """As many partitions as fit, at least one; returns when it ended."""
        removed: list[Path] = []
        ended = began
        while self._left and ended - began < SLICE_SECONDS:
            partition = self._left.popleft()
            if self._trim(partition) == SEGMENTS_PER_STEP:
                self._left.append(partition)
            removed += partition.log.take_removed_paths()
            ended = self._clock.monotonic()
        self._remove_files(removed)
        return ended

    def _trim(self, partition: Partition) -> int:
        """Apply retention to one partition; returns how many segments it dropped."""
        if not self._partitions.holds(partition) or partition.log.offline_reason:
            return 0  # deleted since the round began, or offline, which has been reported
        if partition.producer_snapshots.is_saving:
            return 0  # until then its records may be the only source of its producers' states: left for the next round
        count = 0

        def trim() -> None:
            nonlocal count
            count = apply_retention(
                partition.log, self._round_now_ms, segments_max=SEGMENTS_PER_STEP, limit_offset=partition.visible_offset
            )
            if partition.log.unflushed:
                self._partitions.on_rolled(partition)

        if not self._health.attempt(_trouble_of(partition), trim):
            self._troubled.append(partition)
        if count:
            self._partitions.on_trimmed(partition)
            start = partition.log_start_offset
            logger.info("%s: retention deleted %d segments, the log now starts at %d", partition.name, count, start)
        return count

    def _forget_troubles(self) -> None:
        """Clear those of partitions that are gone or offline, which are not retried. The others fail again, or succeed."""
        for partition in self._troubled:
            if not self._partitions.holds(partition) or partition.log.offline_reason:
                self._health.succeeds(_trouble_of(partition))
        self._troubled = []


def _trouble_of(partition: Partition) -> str:
    return f"retention of {partition.name}"
