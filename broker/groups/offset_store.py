"""Committed offsets and the members of groups: each change is a record in `__consumer_offsets`, from which all is rebuilt.

A change without a value is a tombstone: the offset is forgotten. The topic is created when first needed, only by the brokers
themselves and with its own settings: compacted, so that it grows with the number of offsets, not of commits, and never trimmed
by time.

A standalone broker has all groups in one partition, and reads it at startup. In a cluster, the leader of a group's partition is
the group's coordinator: it starts reading when it becomes leader (COORDINATOR_LOAD_IN_PROGRESS until that is done), and forgets
the offsets when it no longer leads (NOT_COORDINATOR).

If a log cannot be read, what was committed is unknown: commits and offset fetches fail with COORDINATOR_NOT_AVAILABLE, because a
consumer that gets "nothing committed" would start over; everything else works. A single malformed record is counted and skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from broker.clock import Clock
from broker.config.fields import INT32_MAX
from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.errors import BrokerError, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, NotEnoughReplicas
from broker.groups.committed_offsets import Change, CommittedOffsets
from broker.groups.group_records import encode_group
from broker.groups.messages import StoredGroup
from broker.groups.offset_records import CommittedOffset, GroupKey, OffsetKey, encode_key, encode_value
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.records.builder import NewRecord, build_batch
from broker.records.validation import NewBatch, validate_new_batch

logger = logging.getLogger("broker.groups")


class OffsetStore:
    """The committed offsets of all groups that this broker coordinates."""

    def __init__(self, partitions: PartitionManager, clock: Clock, *, groups_max: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._groups_max = groups_max
        self._led: dict[int, CommittedOffsets] = {}  # by partition index
        self.is_alone = False  # there are no other brokers
        self.is_topic_wanted = False  # it is being created
        # Returns why this broker cannot be sure that it still leads a partition, or None; not set without other brokers.
        self.why_not: Callable[[Partition], BrokerError | None] | None = None

    # Which groups are ours

    def own_all(self) -> CommittedOffsets:
        """There are no other brokers: all groups are in one partition, which has yet to be loaded."""
        self.is_alone = True
        return self.begin(0)

    def begin(self, index: int) -> CommittedOffsets:
        """This broker leads the partition from now on, and has yet to load it."""
        offsets = self._led[index] = CommittedOffsets(index, self._clock.monotonic())
        return offsets

    def loaded(self, offsets: CommittedOffsets) -> None:
        """The groups of the partition are ours from now on."""
        offsets.is_loaded = True
        if offsets.unreadable_reason:
            logger.critical(
                "committed offsets cannot be read, commits are refused until the broker is restarted: %s",
                offsets.unreadable_reason,
            )
        if offsets.unreadable_records:
            logger.error("%d records of %s cannot be read: left out", offsets.unreadable_records, OFFSETS_TOPIC)

    def drop(self, index: int) -> None:
        """This broker no longer leads the partition."""
        offsets = self._led.pop(index, None)
        if offsets is not None:
            offsets.is_dropped = True

    def index_of(self, group: str) -> int:
        """The index of the group's partition."""
        if self.is_alone or not self.has_topic:
            return 0
        return partition_of_group(group, self._partitions.registry.get(OFFSETS_TOPIC).partition_count)

    def ours(self, group: str) -> CommittedOffsets:
        """The offsets that include the group's; NotCoordinator or CoordinatorLoadInProgress if they are not here, or not yet."""
        offsets = self._led.get(self.index_of(group))
        if offsets is None:
            raise NotCoordinator(f"another broker coordinates group {group!r}")
        if self.why_not is not None and self.why_not(self._partitions.get(OFFSETS_TOPIC, offsets.index)) is not None:
            raise NotCoordinator(f"this broker cannot be sure that it still coordinates group {group!r}")
        if not offsets.is_loaded:
            raise CoordinatorLoadInProgress(f"the committed offsets of group {group!r} are being read")
        return offsets

    def readable(self, group: str) -> CommittedOffsets:
        """The same; CoordinatorNotAvailable if what was committed is unknown."""
        offsets = self.ours(group)
        offsets.check_available()
        return offsets

    def check_room(self, group: str) -> None:
        """Raises CoordinatorNotAvailable if the group would be one too many."""
        if group not in self.ours(group) and (count := sum(map(len, self._led.values()))) >= self._groups_max:
            raise CoordinatorNotAvailable(f"{count} groups have committed offsets already: logbus.groups.max")

    # All of them

    @property
    def has_topic(self) -> bool:
        return OFFSETS_TOPIC in self._partitions.registry

    @property
    def is_loading(self) -> bool:
        return not all(offsets.is_loaded for offsets in self._led.values())

    @property
    def unreadable_records(self) -> int:
        return sum(offsets.unreadable_records for offsets in self._led.values())

    @property
    def unreadable_reason(self) -> str:
        """Why some committed offsets could not be read; empty if all could."""
        return next((offsets.unreadable_reason for offsets in self._led.values() if offsets.unreadable_reason), "")

    @property
    def offset_count(self) -> int:
        return sum(offsets.offset_count for offsets in self._led.values())

    def __iter__(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for offsets in self._led.values():
            yield from offsets

    def all_loaded(self) -> list[CommittedOffsets]:
        """The partitions whose groups are ours, in the order in which they were won."""
        return [offsets for offsets in self._led.values() if offsets.is_loaded]

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return [group for offsets in self.all_loaded() for group in offsets.group_ids()]

    def of_group(self, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """What the group has committed, as far as this broker knows: nothing if another broker coordinates it."""
        offsets = self._led.get(self.index_of(group))
        return {} if offsets is None else offsets.of_group(group)

    # Changing

    def build(self, changes: Iterable[Change]) -> NewBatch:
        """The changes as one batch that can be staged. This is nearly all of the work: 1 to 5 ms for 500 changes."""
        return self._build((encode_key(key), None if value is None else encode_value(value)) for key, value in changes)

    def build_groups(self, groups: Mapping[str, StoredGroup | None]) -> NewBatch:
        """The same for members of groups, of which None are gone. Takes 2 ms for a thousand members."""
        now_ms = self._clock.now_ms()
        return self._build(
            (encode_key(GroupKey(group_id)), None if group is None else encode_group(group, now_ms))
            for group_id, group in groups.items()
        )

    def _build(self, rows: Iterable[tuple[bytes, bytes | None]]) -> NewBatch:
        now_ms = self._clock.now_ms()
        batch = memoryview(build_batch([NewRecord(timestamp=now_ms, key=key, value=value) for key, value in rows]))
        return validate_new_batch(batch, message_bytes_max=INT32_MAX, now_ms=now_ms, timestamp_after_ms_max=INT32_MAX)

    def stage(self, offsets: CommittedOffsets, changes: Sequence[Change], batches: Sequence[NewBatch]) -> tuple[Partition, int]:
        """Stage the changes, which belong to groups of one partition and were built into these batches; returns the partition,
        and how many bytes were staged. Apply them once the other replicas have what the turn has written. NotCoordinator:
        leadership was lost since `offsets` was obtained."""
        if offsets.is_dropped:
            raise NotCoordinator(f"this broker leads {OFFSETS_TOPIC}-{offsets.index} no longer")
        offsets.check_available()
        partition = self._partitions.get(OFFSETS_TOPIC, offsets.index)
        if partition.lacks_replicas:
            raise NotEnoughReplicas(f"{partition.name} has fewer replicas in sync than min.insync.replicas")
        for batch in batches:  # only the first can be refused
            partition.stage(batch)
        offsets.stage(changes)
        return partition, sum(len(batch.view) for batch in batches)

    def applied(self, offsets: CommittedOffsets, changes: Iterable[Change]) -> None:
        """The changes are in the log of every in-sync replica."""
        offsets.settle(changes)
        for key, value in changes:
            offsets.apply(key, value)
