"""Committed offsets and the members of groups: each change is a record in `__consumer_offsets`, from which all is rebuilt.

`CommittedOffsets` is what the groups of one partition of that topic have committed: a map in memory, rebuilt from the partition's
log by each new leader. Leadership and this object begin and end together: when leadership is lost the object is dropped, and a
new leadership begins with a new object, however short the time between. So an operation that takes several turns, such as a large
commit, can tell whether all of it happened under one leadership. A change is staged for the log first, and applied to the map
when every in-sync replica has it. In between `newest` knows it, so that whoever decides to forget an offset does not overlook a
commit that is on its way.

`OffsetStore` has all partitions that this broker leads. A standalone broker has all groups in one partition, and reads it at
startup. In a cluster, the leader of a group's partition is the group's coordinator: it starts reading when it becomes leader
(COORDINATOR_LOAD_IN_PROGRESS until that is done), and forgets the offsets when it no longer leads (NOT_COORDINATOR).

If a log cannot be read, what was committed is unknown: commits and offset fetches fail with COORDINATOR_NOT_AVAILABLE, because a
consumer that gets "nothing committed" would start over; everything else works. A single malformed record is counted and skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from logbus_broker import errors
from logbus_broker.clock import Clock
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC, partition_of_group
from logbus_broker.groups import coordinator, members, records
from logbus_broker.log import manager, partition_log
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import validation
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import NewRecord, Record, build_batch, read_records
from logbus_broker.setting_parsers import INT32_MAX

Change = tuple[records.OffsetKey, records.CommittedOffset | None]  # None: forget it

_ABSENT = object()
_RECORDS_PER_SLICE = 50  # takes 2 ms if each was committed alone, 0.5 ms if they are in one batch


class CommittedOffsets:
    """The latest committed offset of each (group, topic, partition)."""

    def __init__(self, index: int, ours_since: float) -> None:
        """`ours_since` is on the monotonic clock."""
        self.index = index
        self.ours_since = ours_since
        self.is_loaded = False
        self.is_dropped = False  # leadership was lost
        self.unreadable_records = 0  # found and skipped while loading
        self.unreadable_reason = ""  # why the log could not be read; empty if it could
        self._groups: dict[str, bytes] = {}  # the newest record of each, while loading
        self._committed: dict[str, dict[tuple[str, int], records.CommittedOffset]] = {}
        self._staged: dict[
            str, dict[records.OffsetKey, records.CommittedOffset | None]
        ] = {}  # the last change of each key, by group

    def load(self, log: partition_log.PartitionLog) -> Iterator[None]:
        """Read the current content of the log, slice by slice. Raises StorageError."""
        offset, end_offset = log.log_start_offset, log.end_offset
        while offset < end_offset and not self.is_dropped:
            offset = self._load_slice(log, offset)
            yield

    def _load_slice(self, log: partition_log.PartitionLog, offset: int) -> int:
        """Returns where the next slice begins."""
        record_count = 0
        for batch in log.batches_from(offset):
            header = read_header(batch)
            self._load_batch(batch)
            offset = header.next_offset
            record_count += header.record_count
            if record_count >= _RECORDS_PER_SLICE:
                return offset
        return log.end_offset

    def _load_batch(self, batch: bytes) -> None:
        try:
            for record in read_records(batch):
                self._load_record(record)
        except (errors.InvalidRecord, errors.CorruptMessage):  # the rest of the batch, counted as one
            self.unreadable_records += 1

    def _load_record(self, record: Record) -> None:
        try:
            key = records.decode_key(record.key) if record.key is not None else None
            if isinstance(key, records.GroupKey):
                self._load_group(key.group, record.value)
            elif key is not None:
                self.apply(key, records.decode_value(record.value, self.ours_since) if record.value is not None else None)
        except ValueError:
            self.unreadable_records += 1

    def _load_group(self, group: str, value: bytes | None) -> None:
        if value is None:
            self._groups.pop(group, None)
        else:
            self._groups[group] = value

    def take_groups(self) -> Iterator[tuple[str, members.StoredGroup]]:
        """The groups that the log has, once; each is read when it is its turn."""
        while self._groups and not self.is_dropped:
            group, value = self._groups.popitem()
            try:
                yield group, records.decode_group(value)
            except ValueError:
                self.unreadable_records += 1

    def give_up(self, reason: str) -> None:
        """The log cannot be read: what was committed is unknown."""
        self._groups.clear()
        self._committed.clear()
        self.unreadable_reason = reason

    def check_available(self) -> None:
        """Raises CoordinatorNotAvailable if what was committed is unknown."""
        if self.unreadable_reason:
            raise errors.CoordinatorNotAvailable(f"committed offsets cannot be read: {self.unreadable_reason}")

    @property
    def offset_count(self) -> int:
        return sum(map(len, self._committed.values()))

    def __iter__(self) -> Iterator[tuple[records.OffsetKey, records.CommittedOffset]]:
        for group, rows in self._committed.items():
            for (topic, partition), value in rows.items():
                yield records.OffsetKey(group, topic, partition), value

    def __len__(self) -> int:
        """How many groups have committed something."""
        return len(self._committed)

    def __contains__(self, group: str) -> bool:
        return group in self._committed

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return list(self._committed)

    def get(self, group: str, topic: str, partition: int) -> records.CommittedOffset | None:
        return self._committed.get(group, {}).get((topic, partition))

    def of_group(self, group: str) -> Mapping[tuple[str, int], records.CommittedOffset]:
        return self._committed.get(group, {})

    def apply(self, key: records.OffsetKey, value: records.CommittedOffset | None) -> None:
        rows = self._committed.setdefault(key.group, {})
        if value is None:
            rows.pop((key.topic, key.partition), None)
            if not rows:
                del self._committed[key.group]
        else:
            rows[key.topic, key.partition] = value

    # Changes that are on their way to the replicas

    def stage(self, changes: Iterable[Change]) -> None:
        """The changes are staged for the log, behind all earlier ones."""
        for key, value in changes:
            self._staged.setdefault(key.group, {})[key] = value

    def settle(self, changes: Iterable[Change]) -> None:
        """Staged changes are replicated, or will not be."""
        for key, value in changes:
            rows = self._staged.get(key.group)
            if rows is not None and rows.get(key, _ABSENT) is value:  # not replaced by a later change
                del rows[key]
                if not rows:
                    del self._staged[key.group]

    def newest(self, key: records.OffsetKey) -> records.CommittedOffset | None:
        """What will be committed once everything that is staged is applied. A commit never has the object of an earlier one."""
        rows = self._staged.get(key.group)
        return rows[key] if rows is not None and key in rows else self.get(*key)

    def newest_of_group(
        self, group: str, is_chosen: Callable[[str], bool] = lambda topic: True
    ) -> dict[records.OffsetKey, records.CommittedOffset]:
        """The same for all keys of the group, and of the wanted topics, that will have something committed."""
        rows = {
            records.OffsetKey(group, *partition): value
            for partition, value in self.of_group(group).items()
            if is_chosen(partition[0])
        }
        for key, value in self._staged.get(group, {}).items():
            if value is None:
                rows.pop(key, None)
            elif is_chosen(key.topic):
                rows[key] = value
        return rows


logger = logging.getLogger("broker.groups")


class OffsetStore:
    """The committed offsets of all groups that this broker coordinates."""

    def __init__(self, partitions: manager.PartitionManager, clock: Clock, *, groups_max: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._groups_max = groups_max
        self._led: dict[int, CommittedOffsets] = {}  # by partition index
        self.is_alone = False  # there are no other brokers
        self.is_topic_requested = False  # it is being created
        # Returns why this broker cannot be sure that it still leads a partition, or None; not set without other brokers.
        self.why_not: Callable[[Partition], errors.BrokerError | None] | None = None

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
            logger.error("skipped %d records of %s that cannot be read", offsets.unreadable_records, OFFSETS_TOPIC)

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
            raise errors.NotCoordinator(f"another broker coordinates group {group!r}")
        if self.why_not is not None and self.why_not(self._partitions.get(OFFSETS_TOPIC, offsets.index)) is not None:
            raise errors.NotCoordinator(f"this broker cannot be sure that it still coordinates group {group!r}")
        if not offsets.is_loaded:
            raise errors.CoordinatorLoadInProgress(f"the committed offsets of group {group!r} are being read")
        return offsets

    def readable(self, group: str) -> CommittedOffsets:
        """The same; CoordinatorNotAvailable if what was committed is unknown."""
        offsets = self.ours(group)
        offsets.check_available()
        return offsets

    def check_room(self, group: str) -> None:
        """Raises CoordinatorNotAvailable if the group would be one too many."""
        if group not in self.ours(group) and (count := sum(map(len, self._led.values()))) >= self._groups_max:
            raise errors.CoordinatorNotAvailable(f"{count} groups have committed offsets already: logbus.groups.max")

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

    def __iter__(self) -> Iterator[tuple[records.OffsetKey, records.CommittedOffset]]:
        for offsets in self._led.values():
            yield from offsets

    def all_loaded(self) -> list[CommittedOffsets]:
        """The partitions whose groups are ours, in the order in which they were won."""
        return [offsets for offsets in self._led.values() if offsets.is_loaded]

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return [group for offsets in self.all_loaded() for group in offsets.group_ids()]

    def of_group(self, group: str) -> Mapping[tuple[str, int], records.CommittedOffset]:
        """What the group has committed, as far as this broker knows: nothing if another broker coordinates it."""
        offsets = self._led.get(self.index_of(group))
        return {} if offsets is None else offsets.of_group(group)

    # Changing

    def build(self, changes: Iterable[Change]) -> validation.NewBatch:
        """The changes as one batch that can be staged. This is nearly all of the work: 1 to 5 ms for 500 changes."""
        return self._build(
            (records.encode_key(key), None if value is None else records.encode_value(value)) for key, value in changes
        )

    def build_groups(self, groups: Mapping[str, members.StoredGroup | None]) -> validation.NewBatch:
        """The same for members of groups, of which None are gone. Takes 2 ms for a thousand members."""
        now_ms = self._clock.now_ms()
        return self._build(
            (records.encode_key(records.GroupKey(group_id)), None if group is None else records.encode_group(group, now_ms))
            for group_id, group in groups.items()
        )

    def _build(self, rows: Iterable[tuple[bytes, bytes | None]]) -> validation.NewBatch:
        now_ms = self._clock.now_ms()
        batch = memoryview(build_batch([NewRecord(timestamp=now_ms, key=key, value=value) for key, value in rows]))
        return validation.validate_new_batch(batch, message_bytes_max=INT32_MAX, now_ms=now_ms, timestamp_after_ms_max=INT32_MAX)

    def stage(
        self, offsets: CommittedOffsets, changes: Sequence[Change], batches: Sequence[validation.NewBatch]
    ) -> tuple[Partition, int]:
        """Stage the changes, which belong to groups of one partition and were built into these batches; returns the partition,
        and how many bytes were staged. Apply them once the other replicas have what the turn has written. NotCoordinator:
        leadership was lost since `offsets` was obtained."""
        if offsets.is_dropped:
            raise errors.NotCoordinator(f"this broker leads {OFFSETS_TOPIC}-{offsets.index} no longer")
        offsets.check_available()
        partition = self._partitions.get(OFFSETS_TOPIC, offsets.index)
        if partition.lacks_replicas:
            raise errors.NotEnoughReplicas(f"{partition.name} has fewer replicas in sync than min.insync.replicas")
        for batch in batches:  # only the first can be refused
            partition.stage(batch)
        offsets.stage(changes)
        return partition, sum(len(batch.view) for batch in batches)

    def applied(self, offsets: CommittedOffsets, changes: Iterable[Change]) -> None:
        """The changes are in the log of every in-sync replica."""
        offsets.settle(changes)
        for key, value in changes:
            offsets.apply(key, value)


def expired_offsets(
    group: str,
    partitions: Iterable[tuple[str, int]],
    offsets: CommittedOffsets,
    groups: coordinator.GroupCoordinator,
    *,
    exists: Callable[[str, int], bool],
    now: float,
    now_ms: int,
    retention_ms: int,
) -> Iterator[tuple[records.OffsetKey, records.CommittedOffset]]:
    """The group's offsets for these partitions that may be forgotten: offsets.retention.minutes after the last sign of use
    (KIP-211), or with their partition.

    Use is a commit, or a member. While a group has members, the offsets of topics that they read do not expire, however old a
    commit is. Otherwise the retention time must have passed on two clocks: since the commit, on the wall clock that stamped it,
    and on the monotonic clock, which starts again with each coordinator, since it took the commit (or loaded it) and last saw a
    member. So offsets never expire earlier than in Apache Kafka, and a wall clock that jumps does not expire any."""
    reads = cache(partial(groups.reads, group))
    empty_since = 0.0 if groups.is_active(group) else groups.empty_since(group)
    for topic, partition in partitions:
        value = offsets.get(group, topic, partition)
        if value is None:
            continue
        unused_ms = min(now_ms - value.committed_at_ms, (now - max(value.received_at, empty_since)) * 1000)
        if exists(topic, partition) and (unused_ms < retention_ms or reads(topic)):
            continue
        key = records.OffsetKey(group, topic, partition)
        if offsets.newest(key) is value:  # else a newer commit, which is about to replace it, is on its way to the replicas
            yield key, value
