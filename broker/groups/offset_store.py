"""Committed offsets: each change is a record in `__consumer_offsets`, from which the map in memory is rebuilt.

A change without a value is a tombstone: the offset is forgotten. The topic is made when it is first needed, by the brokers alone
and with settings of its own: compacted, so that it grows with the offsets there are and not with the commits, and never trimmed
by time.

A broker alone has all groups in one partition, and reads it at its start. Among others, the leader of a group's partition is the
group's coordinator: it begins to read when it begins to lead (COORDINATOR_LOAD_IN_PROGRESS meanwhile), and forgets when it does
not lead any more (NOT_COORDINATOR).

Where a log cannot be read, nobody knows what was committed: commits and questions are refused with COORDINATOR_NOT_AVAILABLE,
since a consumer that is told "nothing committed" begins anew, and all else works. A single record that makes no sense is counted
and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from broker.clock import Clock
from broker.config.settings import INT32_MAX
from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.errors import BrokerError, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, NotEnoughReplicas
from broker.groups.committed_offsets import Change, CommittedOffsets
from broker.groups.offset_records import CommittedOffset, OffsetKey, encode_key, encode_value
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.records.builder import NewRecord, build_batch
from broker.records.validation import validate_new_batch

logger = logging.getLogger("broker.groups")


class OffsetStore:
    """The committed offsets of all groups that this broker coordinates."""

    def __init__(self, partitions: PartitionManager, clock: Clock, *, groups_max: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._groups_max = groups_max
        self._led: dict[int, CommittedOffsets] = {}  # by the partition's index
        self.is_alone = False  # there are no other brokers
        self.is_topic_wanted = False  # it is being made
        # Why the leader of a partition cannot be sure that it still leads, if it cannot; None: there are no other brokers.
        self.why_not: Callable[[Partition], BrokerError | None] | None = None

    # Who coordinates

    def load(self) -> None:
        """There are no other brokers: read what was committed, here and now. Called once, at start."""
        self.is_alone = True
        offsets = self.begin(0)
        if self.has_topic:
            try:
                for _ in offsets.load(self._partitions.get(OFFSETS_TOPIC, 0).log):
                    pass
            except (BrokerError, OSError) as error:
                offsets.give_up(str(error))
        self.loaded(offsets)

    def begin(self, index: int) -> CommittedOffsets:
        """This broker leads the partition from now on, and has yet to load it."""
        offsets = self._led[index] = CommittedOffsets(index, self._clock.monotonic())
        return offsets

    def loaded(self, offsets: CommittedOffsets) -> None:
        """The groups of the partition are ours."""
        offsets.is_loaded = True
        if offsets.unreadable_reason:
            logger.critical(
                "committed offsets cannot be read, commits are refused until the broker is restarted: %s",
                offsets.unreadable_reason,
            )
        if offsets.unreadable_records:
            logger.error("%d records of %s cannot be read: left out", offsets.unreadable_records, OFFSETS_TOPIC)

    def drop(self, index: int) -> None:
        """This broker does not lead the partition any more."""
        offsets = self._led.pop(index, None)
        if offsets is not None:
            offsets.is_dropped = True

    def index_of(self, group: str) -> int:
        """The partition that the group is in."""
        if self.is_alone or not self.has_topic:
            return 0
        return partition_of_group(group, self._partitions.registry.get(OFFSETS_TOPIC).partition_count)

    def ours(self, group: str) -> CommittedOffsets:
        """Where the group's offsets are; NotCoordinator, CoordinatorLoadInProgress where they are not here, or not yet."""
        offsets = self._led.get(self.index_of(group))
        if offsets is None:
            raise NotCoordinator(f"another broker coordinates group {group!r}")
        if self.why_not is not None and self.why_not(self._partitions.get(OFFSETS_TOPIC, offsets.index)) is not None:
            raise NotCoordinator(f"this broker cannot be sure that it still coordinates group {group!r}")
        if not offsets.is_loaded:
            raise CoordinatorLoadInProgress(f"the committed offsets of group {group!r} are being read")
        return offsets

    def readable(self, group: str) -> CommittedOffsets:
        """The same; CoordinatorNotAvailable where nobody knows what was committed."""
        offsets = self.ours(group)
        offsets.check_available()
        return offsets

    def check_room(self, group: str) -> None:
        """Raises CoordinatorNotAvailable where the group would be one too many."""
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
        """Why some of what was committed could not be read; empty: it could."""
        return next((offsets.unreadable_reason for offsets in self._led.values() if offsets.unreadable_reason), "")

    @property
    def offset_count(self) -> int:
        return sum(offsets.offset_count for offsets in self._led.values())

    def __iter__(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for offsets in self._led.values():
            yield from offsets

    def all_loaded(self) -> list[CommittedOffsets]:
        """Those whose groups are ours, in the order in which they became so."""
        return [offsets for offsets in self._led.values() if offsets.is_loaded]

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return [group for offsets in self.all_loaded() for group in offsets.group_ids()]

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group).get((topic, partition))

    def of_group(self, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """What the group has committed, as far as this broker knows: nothing where another coordinates it."""
        offsets = self._led.get(self.index_of(group))
        return {} if offsets is None else offsets.of_group(group)

    # Changing

    def stage(self, offsets: CommittedOffsets, changes: Iterable[Change]) -> tuple[Partition, int]:
        """Stage one batch with all changes, which are of groups of one partition; returns the partition, and the batch's size.
        Apply them once other replicas have what the turn has written. NotCoordinator: the lead was lost since `offsets` was
        taken."""
        if offsets.is_dropped:
            raise NotCoordinator(f"this broker leads {OFFSETS_TOPIC}-{offsets.index} no longer")
        offsets.check_available()
        now_ms = self._clock.now_ms()
        records = [
            NewRecord(timestamp=now_ms, key=encode_key(key), value=None if value is None else encode_value(value))
            for key, value in changes
        ]
        partition = self._partitions.get(OFFSETS_TOPIC, offsets.index)
        if partition.lacks_replicas:
            raise NotEnoughReplicas(f"{partition.name} has fewer replicas in sync than min.insync.replicas")
        batch = build_batch(records)
        staged = validate_new_batch(
            memoryview(batch), message_bytes_max=INT32_MAX, now_ms=now_ms, timestamp_after_ms_max=INT32_MAX
        )
        partition.stage(staged)
        return partition, len(batch)

    def applied(self, offsets: CommittedOffsets, changes: Iterable[Change]) -> None:
        """The changes are in the log of every replica in sync."""
        for key, value in changes:
            offsets.apply(key, value)
