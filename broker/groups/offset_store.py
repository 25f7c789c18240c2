"""Committed offsets: a map in memory, and every change a record in `__consumer_offsets`, from which the map is rebuilt at start.

A commit is answered when its record is written, like a produce with acks=1. A change without a value is a tombstone: the offset
is forgotten. The topic is made at the first commit. It is compacted: it grows with the offsets there are, not with the commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from broker.clock import Clock
from broker.config import INT32_MAX
from broker.errors import CoordinatorNotAvailable
from broker.groups.records import CommittedOffset, OffsetKey, decode_key, decode_value, encode_key, encode_value
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.records.builder import NewRecord, build_batch
from broker.records.reader import read_records
from broker.records.validation import validate_new_batch

OFFSETS_TOPIC = "__consumer_offsets"
Change = tuple[OffsetKey, CommittedOffset | None]  # None: forget it


class OffsetStore:
    """The newest committed offset of each (group, topic, partition)."""

    def __init__(self, partitions: PartitionManager, clock: Clock, *, groups_max: int, segment_bytes: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._groups_max = groups_max
        self._settings = {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
        self._committed: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    def load(self) -> None:
        """Rebuild the map from the topic; called once, at start."""
        if OFFSETS_TOPIC not in self._partitions.registry:
            return
        log = self._partitions.get(OFFSETS_TOPIC, 0).log
        for batch in log.batches_from(log.log_start_offset):
            for record in read_records(batch):
                key = decode_key(record.key) if record.key is not None else None
                if key is not None:
                    self._put(key, decode_value(record.value) if record.value is not None else None)

    @property
    def offset_count(self) -> int:
        return sum(map(len, self._committed.values()))

    def __iter__(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for group, rows in self._committed.items():
            for (topic, partition), value in rows.items():
                yield OffsetKey(group, topic, partition), value

    def group_ids(self) -> list[str]:
        """The groups that have committed something."""
        return list(self._committed)

    def check_room(self, group: str) -> None:
        """Raises CoordinatorNotAvailable where the group would be one too many."""
        if group not in self._committed and len(self._committed) >= self._groups_max:
            raise CoordinatorNotAvailable(f"{len(self._committed)} groups have committed offsets already: logbus.groups.max")

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group, {}).get((topic, partition))

    def of_group(self, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        return self._committed.get(group, {})

    def stage(self, changes: Iterable[Change]) -> tuple[Partition, int]:
        """Stage one batch with all changes; returns its partition and size. Call `applied` once the turn's write is done."""
        now_ms = self._clock.now_ms()
        records = [
            NewRecord(timestamp=now_ms, key=encode_key(key), value=None if value is None else encode_value(value))
            for key, value in changes
        ]
        partition = self._partition()
        batch = build_batch(records)
        staged = validate_new_batch(
            memoryview(batch), message_bytes_max=INT32_MAX, now_ms=now_ms, timestamp_after_ms_max=INT32_MAX
        )
        partition.stage(staged)
        return partition, len(batch)

    def applied(self, changes: Iterable[Change]) -> None:
        for key, value in changes:
            self._put(key, value)

    def _put(self, key: OffsetKey, value: CommittedOffset | None) -> None:
        rows = self._committed.setdefault(key.group, {})
        if value is None:
            rows.pop((key.topic, key.partition), None)
            if not rows:
                del self._committed[key.group]
        else:
            rows[key.topic, key.partition] = value

    def _partition(self) -> Partition:
        if OFFSETS_TOPIC not in self._partitions.registry:
            self._partitions.create(OFFSETS_TOPIC, 1, self._settings)
        return self._partitions.get(OFFSETS_TOPIC, 0)
