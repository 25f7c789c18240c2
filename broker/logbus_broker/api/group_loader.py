"""Groups move to and from this broker with the leadership of their partition of `__consumer_offsets`.

A new coordinator reads committed offsets and members before it serves a group, as a background task: the loop continues. Logs are
read one after another, however many are won at once. The end of a log may be newer than what the last coordinator had
acknowledged, and other replicas may not have it yet. So the coordinator waits until they do, but only for a limited time: a
consumer that was given an offset should not be given an older one later, but neither should it stall for as long as a replica is
down. The groups are restored last, so that their sessions begin when their members can be heard.

A standalone broker has all groups from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from logbus_broker import errors, logs
from logbus_broker.api import groups, handler, purgatory
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC
from logbus_broker.groups.committed_offsets import CommittedOffsets
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.partition import Partition

_REPLICATION_MS_MAX = 5_000


class GroupLoader:
    """Notified of every change of leadership; ignores partitions other than those of `__consumer_offsets`."""

    def __init__(self, context: handler.Context) -> None:
        self._context = context
        self._to_load: deque[tuple[Partition, CommittedOffsets]] = deque()
        self._is_loading = False

    def own_all(self) -> None:
        """There are no other brokers. Called once, at startup."""
        offsets = self._context.offsets.own_all()
        if self._context.offsets.has_topic:
            for _ in self._load(offsets):
                pass
        for _ in self._restore(offsets):
            pass

    def won(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic != OFFSETS_TOPIC:
            return
        self._to_load.append((partition, self._context.offsets.begin(partition.index)))
        if not self._is_loading:
            self._is_loading = True
            self._context.tasks.begin(self._load_all(), self._failed)

    def lost(self, partition: Partition) -> None:
        """This broker no longer leads the partition: requests that wait for one of its groups are answered at once."""
        if partition.topic != OFFSETS_TOPIC:
            return
        offsets, index = self._context.offsets, partition.index
        offsets.drop(index)
        groups.deliver(self._context.groups.lose(lambda group_id: offsets.index_of(group_id) == index))

    def _load_all(self) -> Steps:
        while self._to_load:
            partition, offsets = self._to_load.popleft()
            yield from self._load(offsets)
            if not offsets.is_dropped:
                _Load(partition, self._context, partial(self._context.tasks.begin, self._restore(offsets), self._failed)).begin()
        self._is_loading = False

    def _load(self, offsets: CommittedOffsets) -> Steps:
        try:
            yield from offsets.load(self._context.partitions.get(OFFSETS_TOPIC, offsets.index).log)
        except Exception as error:  # affects the groups of this partition, not those of the next
            offsets.give_up(str(error) or type(error).__name__)
            if not isinstance(error, (errors.BrokerError, OSError)):
                self._context.health.defect(f"reading {OFFSETS_TOPIC}-{offsets.index}", error)

    def _restore(self, offsets: CommittedOffsets) -> Steps:
        for group_id, stored in offsets.take_groups():
            try:
                self._context.groups.restore(group_id, stored, self._context.clock.monotonic())
            except Exception as error:  # affects this group: its members join again
                self._context.health.defect(f"restoring group {group_id}", error)
            yield None
        if not offsets.is_dropped:
            self._context.offsets.loaded(offsets)

    def _failed(self) -> None:
        """Called inside an exception handler."""
        self._is_loading = False
        logs.log_bug("loading committed offsets failed")


class _Load(purgatory.Deadline):
    """A log that was read, waiting until the other replicas have it; then `go_on` is called."""

    __slots__ = ("_context", "_go_on", "_partition")

    def __init__(self, partition: Partition, context: handler.Context, go_on: Callable[[], None]) -> None:
        super().__init__(context.clock.monotonic() + _REPLICATION_MS_MAX / 1000)
        self._partition = partition
        self._context = context
        self._go_on = go_on

    def begin(self) -> None:
        partition = self._partition
        self._context.high_watermark.when_replicated(partition, partition.end_offset, self._replicated, self)
        if not self.is_over:
            self._context.deadlines.add_in_order(self, _REPLICATION_MS_MAX)

    def _replicated(self, error: errors.BrokerError | None) -> None:
        if self.is_over:
            return
        self._context.deadlines.cancel(self)
        if error is None:
            self._go_on()

    def expire(self) -> None:
        self._go_on()
