"""Groups move to and from this broker with the leadership of their partition of `__consumer_offsets`.

A new coordinator reads committed offsets before it serves a group, as a chore: the loop continues. Logs are read one after
another, however many are won at once. The end of a log may be newer than what the last coordinator had acknowledged, and other
replicas may not have it yet. So the coordinator waits until they do, but only for a limited time: a consumer that was given an
offset should not be given an older one later, but neither should it stall for as long as a replica is down.
"""

from __future__ import annotations

import logging
from collections import deque

from broker.chores import Steps
from broker.coordination.group_places import OFFSETS_TOPIC
from broker.errors import BrokerError
from broker.groups.committed_offsets import CommittedOffsets
from broker.handlers.context import Context
from broker.handlers.deadlines import Deadline
from broker.handlers.groups import deliver
from broker.partitions.partition import Partition

logger = logging.getLogger("broker.groups")

_REPLICATION_MS_MAX = 5_000


class GroupMoves:
    """Notified of every change of leadership; ignores partitions other than those of `__consumer_offsets`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._to_load: deque[tuple[Partition, CommittedOffsets]] = deque()
        self._is_loading = False

    def won(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic != OFFSETS_TOPIC:
            return
        self._to_load.append((partition, self._context.offsets.begin(partition.index)))
        if not self._is_loading:
            self._is_loading = True
            self._context.chores.begin(self._load_all(), self._failed)

    def lost(self, partition: Partition) -> None:
        """This broker no longer leads the partition: requests that wait for one of its groups are answered at once."""
        if partition.topic != OFFSETS_TOPIC:
            return
        offsets, index = self._context.offsets, partition.index
        offsets.drop(index)
        deliver(self._context.groups.lose(lambda group_id: offsets.index_of(group_id) == index))

    def _load_all(self) -> Steps:
        while self._to_load:
            partition, offsets = self._to_load.popleft()
            try:
                yield from offsets.load(partition.log)
            except Exception as error:  # affects the groups of this partition, not those of the next
                offsets.give_up(str(error) or type(error).__name__)
                if not isinstance(error, (BrokerError, OSError)):
                    self._context.health.defect(f"reading {partition.name}", error)
            if not offsets.is_dropped:
                _Load(partition, offsets, self._context).begin()
        self._is_loading = False

    def _failed(self) -> None:
        """Called inside an exception handler."""
        self._is_loading = False
        logger.exception("committed offsets could not be read; this is a defect of the broker")


class _Load(Deadline):
    """Offsets that were read, waiting until the other replicas have them."""

    __slots__ = ("_context", "_is_timed", "_offsets", "_partition")

    def __init__(self, partition: Partition, offsets: CommittedOffsets, context: Context) -> None:
        super().__init__(context.clock.monotonic() + _REPLICATION_MS_MAX / 1000)
        self._partition = partition
        self._offsets = offsets
        self._context = context
        self._is_timed = False

    def begin(self) -> None:
        partition = self._partition
        self._context.exposure.when_replicated(partition, partition.end_offset, self._replicated, self)
        if not self.is_over:
            self._is_timed = True
            self._context.deadlines.add_in_order(self, _REPLICATION_MS_MAX)

    def _replicated(self, error: BrokerError | None) -> None:
        if self.is_over:
            return
        if self._is_timed:
            self._context.deadlines.cancel(self)
        self.is_over = True
        if error is None:
            self._context.offsets.loaded(self._offsets)

    def expire(self) -> None:
        self._context.offsets.loaded(self._offsets)
