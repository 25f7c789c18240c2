"""Committed offsets: a map in memory, and every change a record in `__consumer_offsets`, from which the map is rebuilt at start.

A commit is answered when its record is written, like a produce with acks=1. A change without a value is a tombstone: the offset
is forgotten. The topic is made at the first commit, by the broker alone and with settings of its own: compacted, so that it grows
with the offsets there are and not with the commits, and never trimmed by time.

Where its log cannot be read at the start, nobody knows what was committed: commits and questions are refused with
COORDINATOR_NOT_AVAILABLE, since a consumer that is told "nothing committed" begins anew, and all else works. A single record that
makes no sense is counted and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from broker.clock import Clock
from broker.config import INT32_MAX
from broker.errors import BrokerError, CoordinatorNotAvailable, CorruptMessage, InvalidRecord
from broker.groups.records import CommittedOffset, OffsetKey, decode_key, decode_value, encode_key, encode_value
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.records.builder import NewRecord, build_batch
from broker.records.reader import Record, read_records
from broker.records.validation import validate_new_batch

logger = logging.getLogger("broker.groups")

OFFSETS_TOPIC = "__consumer_offsets"
Change = tuple[OffsetKey, CommittedOffset | None]  # None: forget it


class OffsetStore:
    """The newest committed offset of each (group, topic, partition)."""

    def __init__(self, partitions: PartitionManager, clock: Clock, *, groups_max: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._groups_max = groups_max
        self._committed: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.unreadable_records = 0  # found in the topic at the start, and left out
        self.unreadable_reason = ""  # why nothing of it could be read; empty: it could

    def load(self) -> None:
        """Rebuild the map from the topic; called once, at start."""
        if not self.has_topic:
            return
        try:
            log = self._partitions.get(OFFSETS_TOPIC, 0).log
            for batch in log.batches_from(log.log_start_offset):
                self._load_batch(batch)
        except (BrokerError, OSError) as error:
            self._committed.clear()
            self.unreadable_reason = str(error)
            logger.critical("committed offsets cannot be read, commits are refused until the broker is restarted: %s", error)
        if self.unreadable_records:
            logger.error("%d records of %s cannot be read: left out", self.unreadable_records, OFFSETS_TOPIC)

    def _load_batch(self, batch: bytes) -> None:
        try:
            for record in read_records(batch):
                self._load_record(record)
        except (InvalidRecord, CorruptMessage):  # what is left of the batch
            self.unreadable_records += 1

    def _load_record(self, record: Record) -> None:
        try:
            key = decode_key(record.key) if record.key is not None else None
            if key is not None:
                self._put(key, decode_value(record.value) if record.value is not None else None)
        except ValueError:
            self.unreadable_records += 1

    @property
    def has_topic(self) -> bool:
        return OFFSETS_TOPIC in self._partitions.registry

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

    def check_available(self) -> None:
        """Raises CoordinatorNotAvailable where nobody knows what was committed."""
        if self.unreadable_reason:
            raise CoordinatorNotAvailable(f"committed offsets cannot be read: {self.unreadable_reason}")

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
        self.check_available()
        now_ms = self._clock.now_ms()
        records = [
            NewRecord(timestamp=now_ms, key=encode_key(key), value=None if value is None else encode_value(value))
            for key, value in changes
        ]
        partition = self._partitions.get(OFFSETS_TOPIC, 0)
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
