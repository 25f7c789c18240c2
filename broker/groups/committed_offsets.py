"""What the groups of one partition of `__consumer_offsets` have committed: a map in memory, rebuilt from the partition's log by
each new leader.

Leadership and this object begin and end together: when leadership is lost the object is dropped, and a new leadership begins with
a new object, however short the time between. So an operation that takes several turns, such as a large commit, can tell whether
all of it happened under one leadership.

A change is staged for the log first, and applied to the map when every in-sync replica has it. In between `newest` knows it, so
that whoever decides to forget an offset does not overlook a commit that is on its way.

A log is read in slices, each of which looks up its position again: between two slices the log may be rolled and compacted. The
newest record of each group's membership is kept until the groups are restored from it (`take_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from broker.errors import CoordinatorNotAvailable, CorruptMessage, InvalidRecord
from broker.groups.group_records import decode_group
from broker.groups.messages import StoredGroup
from broker.groups.offset_records import CommittedOffset, GroupKey, OffsetKey, decode_key, decode_value
from broker.records.batch import read_header
from broker.records.reader import Record, read_records
from broker.storage.partition_log import PartitionLog

Change = tuple[OffsetKey, CommittedOffset | None]  # None: forget it

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
        self._committed: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._staged: dict[str, dict[OffsetKey, CommittedOffset | None]] = {}  # the last change of each key, by group

    def load(self, log: PartitionLog) -> Iterator[None]:
        """Read the current content of the log, slice by slice. Raises StorageError."""
        offset, end_offset = log.log_start_offset, log.end_offset
        while offset < end_offset and not self.is_dropped:
            offset = self._load_slice(log, offset)
            yield

    def _load_slice(self, log: PartitionLog, offset: int) -> int:
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
        except (InvalidRecord, CorruptMessage):  # the rest of the batch, counted as one
            self.unreadable_records += 1

    def _load_record(self, record: Record) -> None:
        try:
            key = decode_key(record.key) if record.key is not None else None
            if isinstance(key, GroupKey):
                self._load_group(key.group, record.value)
            elif key is not None:
                self.apply(key, decode_value(record.value, self.ours_since) if record.value is not None else None)
        except ValueError:
            self.unreadable_records += 1

    def _load_group(self, group: str, value: bytes | None) -> None:
        if value is None:
            self._groups.pop(group, None)
        else:
            self._groups[group] = value

    def take_groups(self) -> Iterator[tuple[str, StoredGroup]]:
        """The groups that the log has, once; each is read when it is its turn."""
        while self._groups and not self.is_dropped:
            group, value = self._groups.popitem()
            try:
                yield group, decode_group(value)
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
            raise CoordinatorNotAvailable(f"committed offsets cannot be read: {self.unreadable_reason}")

    @property
    def offset_count(self) -> int:
        return sum(map(len, self._committed.values()))

    def __iter__(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for group, rows in self._committed.items():
            for (topic, partition), value in rows.items():
                yield OffsetKey(group, topic, partition), value

    def __len__(self) -> int:
        """How many groups have committed something."""
        return len(self._committed)

    def __contains__(self, group: str) -> bool:
        return group in self._committed

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return list(self._committed)

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group, {}).get((topic, partition))

    def of_group(self, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        return self._committed.get(group, {})

    def apply(self, key: OffsetKey, value: CommittedOffset | None) -> None:
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

    def newest(self, key: OffsetKey) -> CommittedOffset | None:
        """What will be committed once everything that is staged is applied. A commit never has the object of an earlier one."""
        rows = self._staged.get(key.group)
        return rows[key] if rows is not None and key in rows else self.get(*key)

    def newest_of_group(
        self, group: str, is_wanted: Callable[[str], bool] = lambda topic: True
    ) -> dict[OffsetKey, CommittedOffset]:
        """The same for all keys of the group, and of the wanted topics, that will have something committed."""
        rows = {OffsetKey(group, *place): value for place, value in self.of_group(group).items() if is_wanted(place[0])}
        for key, value in self._staged.get(group, {}).items():
            if value is None:
                rows.pop(key, None)
            elif is_wanted(key.topic):
                rows[key] = value
        return rows
