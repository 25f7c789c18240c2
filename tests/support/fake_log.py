"""A log in memory that answers the ledger's questions; verified against a real broker by tests/contract/test_offset_log.py."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logbus.errors import AccessDenied, BrokerUnavailable, TopicMissing, UserError
from logbus.fingerprint import as_signed, record_hash
from logbus.kafka.topics import OffsetAndTimestamp, TopicFacts
from logbus.model import Witness

_ids = itertools.count(1)

NO_TIMESTAMP = -1  # of a record whose producer set none

KEY = b"key"  # of every record


def value_of(topic_id: str, partition: int, offset: int, epoch: int = 0) -> bytes:
    """A record's value, the same each time: by its offset JSON, text that is not JSON, or bytes that are not text."""
    name = f"{topic_id}/{partition}/{offset}" + (f"/{epoch}" if epoch else "")
    return {0: b"\xff" + name.encode(), 1: name.encode()}.get(offset % 5, json.dumps({"name": name}).encode())


@dataclass
class FakePartition:
    """Timestamps by offset; those below `start_offset` are deleted. None is an offset without a record, as a transaction's marker
    or compaction leaves. `stable_end` is the first offset of an open transaction. `cuts` are offsets to which the log was once
    cut back, as by a restore from a backup: records appended there since are other ones. `values` are those passed explicitly."""

    stamps_ms: list[int | None] = field(default_factory=list)
    start_offset: int = 0
    stable_end: int | None = None
    cuts: list[int] = field(default_factory=list)
    values: dict[int, bytes | None] = field(default_factory=dict)

    def cut(self, end_offset: int) -> None:
        del self.stamps_ms[end_offset:]
        self.values = {at: value for at, value in self.values.items() if at < end_offset}
        self.cuts.append(end_offset)
        self.start_offset, self.stable_end = min(self.start_offset, end_offset), None

    def first_from(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        found = (record for record in self.records(0, len(self.stamps_ms)) if record.timestamp_ms >= timestamp_ms)
        return next(found, None)

    def records(self, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        return self.all_records(max(start_offset, self.start_offset), end_offset)

    def all_records(self, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        """Including deleted ones."""
        for offset in range(start_offset, min(end_offset, len(self.stamps_ms))):
            stamp = self.stamps_ms[offset]
            if stamp is not None:
                yield OffsetAndTimestamp(offset=offset, timestamp_ms=stamp, leader_epoch=self.epoch(offset))

    def epoch(self, offset: int) -> int:
        """How often the record at an offset has been replaced by another."""
        return sum(cut <= offset for cut in self.cuts)

    def last_record(self, start_offset: int, end_offset: int) -> OffsetAndTimestamp | None:
        """The last record of the range, if `start_offset` is within the log."""
        if not self.start_offset <= start_offset <= len(self.stamps_ms):
            return None
        return next(reversed([*self.records(start_offset, end_offset)]), None)

    def end_offset(self, isolation_level: str) -> int:
        end = len(self.stamps_ms)
        return end if self.stable_end is None or isolation_level == "read_uncommitted" else self.stable_end


class FakeLog:
    """Topics of partitions. `interrupt`, if set, is called before every answer: a test appends or deletes there."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FakePartition]] = {}
        self.ids: dict[str, str] = {}
        self.own_settings: dict[str, dict[str, str]] = {}
        self.denied: set[str] = set()  # operations that the user may not do
        self.cluster: str | None = "fake"
        self.interrupt: Callable[[str], None] = lambda question: None

    @classmethod
    def of(cls, topic: str, *partitions: Iterable[int]) -> FakeLog:
        """One topic, whose partitions hold records with these timestamps."""
        log = cls()
        log.fill(topic, *partitions)
        return log

    def create(self, name: str, partitions: int = 1) -> None:
        """Create the topic, or recreate it: then it is empty and has another id."""
        self.topics[name] = [FakePartition() for _ in range(partitions)]
        self.ids[name] = f"id-{next(_ids)}"

    def fill(self, name: str, *partitions: Iterable[int | None]) -> None:
        """Create the topic with these partitions, whose records have these timestamps."""
        self.create(name, len(partitions))
        for number, stamps_ms in enumerate(partitions):
            self.append(name, *stamps_ms, partition=number)

    def before(self, question: str, act: Callable[[], None]) -> None:
        """Calls `act` once, before the next answer to this question."""

        def asked(name: str) -> None:
            if name == question:
                self.interrupt = lambda question: None
                act()

        self.interrupt = asked

    def add_partitions(self, name: str, count: int) -> None:
        """Add partitions to the topic, until it has `count`."""
        self.topics[name] += [FakePartition() for _ in range(count - len(self.topics[name]))]

    def append(self, name: str, *stamps_ms: int | None, partition: int = 0) -> None:
        self.topics[name][partition].stamps_ms.extend(stamps_ms)

    def append_values(self, name: str, records: Iterable[tuple[int, bytes | None]], partition: int = 0) -> None:
        """Append records with these values: (timestamp, value)."""
        part = self.topics[name][partition]
        for stamp, value in records:
            part.values[len(part.stamps_ms)] = value
            part.stamps_ms.append(stamp)

    def cut(self, name: str, end_offset: int, partition: int = 0) -> None:
        """Remove the records from `end_offset` on, as a restore or an unclean election does. The topic's id stays."""
        self.topics[name][partition].cut(end_offset)

    def compact(self, name: str, *offsets: int, partition: int = 0) -> None:
        """Remove single records."""
        for offset in offsets:
            self.topics[name][partition].stamps_ms[offset] = None

    def delete_records(self, name: str, before_offset: int, partition: int = 0) -> None:
        self.topics[name][partition].start_offset = before_offset

    def topic(self, name: str) -> TopicFacts:
        self.interrupt("topic")
        if name not in self.topics:
            raise TopicMissing(f"the broker at (memory) has no topic {name!r}")
        return TopicFacts(name=name, topic_id=self.ids[name], partitions=tuple(range(len(self.topics[name]))))

    def parts(self, topic: str, numbers: Iterable[int]) -> dict[int, FakePartition]:
        """The client raises TopicMissing if some of the partitions do not exist, and that they have no leader if none does."""
        numbers, found = list(numbers), dict(enumerate(self.topics.get(topic, ())))
        if numbers and not found.keys() & set(numbers):
            raise BrokerUnavailable(f"the broker at (memory) did not answer a request: nobody leads {topic}-{numbers[0]}")
        if set(numbers) - found.keys():
            raise TopicMissing(f"the broker at (memory) has no topic {topic!r}")
        return {number: found[number] for number in numbers}

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        self.interrupt("start_offsets")
        return {number: part.start_offset for number, part in self.parts(topic, partitions).items()}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        self.interrupt("end_offsets")
        return {number: part.end_offset(isolation_level) for number, part in self.parts(topic, partitions).items()}

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, OffsetAndTimestamp]:
        self.interrupt("first_at_or_after")
        found = {number: part.first_from(timestamp_ms) for number, part in self.parts(topic, partitions).items()}
        return {part: record for part, record in found.items() if record is not None}

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, OffsetAndTimestamp]]:
        return {stamp: self.first_at_or_after(topic, partitions, stamp) for stamp in timestamps_ms}

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        self.interrupt("records")
        return self.topics[topic][partition].records(start_offset, end_offset)

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Witness]:
        self.interrupt("last_records")
        parts = self.parts(topic, ranges)
        found = {part: parts[part].last_record(start, end) for part, (start, end) in ranges.items()}
        return {part: self.witness(topic, part, record) for part, record in found.items() if record is not None}

    def lacking(self, topic: str, operations: Iterable[str]) -> dict[str, UserError]:
        return {name: AccessDenied(f"this user lacks {name} on topic {topic}") for name in operations if name in self.denied}

    def cluster_id(self) -> str | None:
        return self.cluster

    def value(self, topic: str, partition: int, record: OffsetAndTimestamp) -> bytes | None:
        values = self.topics[topic][partition].values
        if record.offset in values:
            return values[record.offset]
        return value_of(self.ids[topic], partition, record.offset, record.leader_epoch or 0)

    def witness(self, topic: str, partition: int, record: OffsetAndTimestamp) -> Witness:
        value = self.value(topic, partition, record)
        hashed = as_signed(record_hash(partition, record.offset, record.timestamp_ms, KEY, value))
        return Witness(offset=record.offset, timestamp_ms=record.timestamp_ms, hash=hashed, leader_epoch=record.leader_epoch)

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        self.interrupt("delete_before")
        self.topic(topic)
        parts = {number: self.topics[topic][number] for number in offsets}
        if any(offsets[number] > len(part.stamps_ms) for number, part in parts.items()):
            raise UserError(f"topic {topic} ends before the offset up to which records were to be deleted")
        for number, part in parts.items():
            part.start_offset = max(part.start_offset, offsets[number])
        return {number: part.start_offset for number, part in parts.items()}

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        if denied := self.lacking(topic, ["DescribeConfigs"]):
            raise denied["DescribeConfigs"]
        self.topic(topic)
        found = {
            "cleanup.policy": "delete",
            "retention.ms": "604800000",
            "retention.bytes": "-1",
            **self.own_settings.get(topic, {}),
        }
        return {name: found[name] for name in names if name in found}

    def change_settings(self, topic: str, values: Mapping[str, str]) -> None:
        self.topic(topic)
        self.own_settings.setdefault(topic, {}).update(values)
