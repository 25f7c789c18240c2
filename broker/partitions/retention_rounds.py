"""Drives retention on the loop: every partition in each round, in slices of a few milliseconds.

Only the loop changes a log's list of segments, so retention runs there, and renaming files takes a while: a round over 2,000
partitions that dropped three segments each was measured to hold the loop for 1.2 seconds when it ran in one piece. So a slice
ends after SLICE_SECONDS, and the next one begins after a pause three times as long. After SEGMENTS_PER_STEP segments a partition
goes to the back of the queue, so one long log is processed in slices as well. The renamed files are removed by a helper, one
slice's at a time.

A disk error affects that partition only: it is retried in the next round, and health shows it until then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from broker.chores import PAUSE_PER_SLICE, SLICE_SECONDS
from broker.clock import Clock, UnhurriedClock
from broker.config.settings import BrokerConfig
from broker.health import Health
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.storage.retention import apply_retention

logger = logging.getLogger("broker.partitions")

SEGMENTS_PER_STEP = 8


class Retention:
    """All methods run on the loop's thread."""

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
        if partition.producer_memory.is_saving:
            return 0  # until that is done, only the records may tell what its producers have sent: the next round takes it
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
