"""Groups come to this broker, and leave it, with the lead of their partition of `__consumer_offsets`.

A new coordinator reads what was committed before it serves a group, as a chore: the loop goes on. One log is read after the
other, however many are won at once. What it reads may be newer than what the last coordinator had acknowledged: the end of the
log, which other replicas may not have yet. So it waits until they do, or for a while where they do not come: a consumer that is
told an offset should not be told an older one later, but neither should it stand still for as long as a replica is away.
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
    """Told of each change of a lead; what is no partition of `__consumer_offsets` is nothing to it."""

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
        """It does not lead the partition any more: whoever waits for one of its groups is told at once."""
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
            except Exception as error:  # it costs the groups of this partition, not those of the next
                offsets.give_up(str(error) or type(error).__name__)
                if not isinstance(error, (BrokerError, OSError)):
                    self._context.health.defect(f"reading {partition.name}", error)
            if not offsets.is_dropped:
                _Load(partition, offsets, self._context).begin()
        self._is_loading = False

    def _failed(self) -> None:
        """For an exception handler."""
        self._is_loading = False
        logger.exception("committed offsets could not be read; this is a defect of the broker")


class _Load(Deadline):
    """What was read waits until other replicas have it."""

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
