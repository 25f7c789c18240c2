"""What the ledger asks a broker: which topic, which offsets, which record comes first after an instant.

`OffsetLog` is the question list; `LogOffsets` asks a real broker by confluent-kafka's admin client, and the tests'
fake answers from memory; one contract suite runs over both. Offsets and timestamps only: no record's value is kept, a
witness has its hash. Timestamps are milliseconds since the epoch, as on the wire. Every call has a time limit, because
admin calls can hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from confluent_kafka.admin import OffsetSpec

from logbus.fingerprint import as_signed, record_hash
from logbus.kafka.admin import LATEST, BrokerQuestions
from logbus.kafka.exact_reader import read_range
from logbus.kafka.requests import TIMEOUT_SECONDS
from logbus.kafka.single_records import SingleRecords
from logbus.model import Witness

UNDER_WAY_MAX = 100  # questions by time of one topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as it is now. The id is another one after the topic was deleted and made again."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """Where a record lies and when it says it happened."""

    offset: int
    timestamp_ms: int
    leader_epoch: int | None = None


class OffsetLog(Protocol):
    """The questions. A partition missing from an answer of found records has none."""

    def topic(self, name: str) -> TopicFacts: ...

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]: ...

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]: ...

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, FoundRecord]: ...

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, FoundRecord]]: ...

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[FoundRecord]: ...

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Witness]: ...

    def cluster_id(self) -> str | None: ...


class LogOffsets(BrokerQuestions):
    """The questions put to a real broker."""

    def __init__(self, client_config: Mapping[str, Any], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        super().__init__(client_config, timeout_seconds=timeout_seconds)
        self._single_records = SingleRecords(client_config, timeout_seconds=timeout_seconds)

    def topic(self, name: str) -> TopicFacts:
        """Id and partitions; `TopicMissing` where the broker has no such topic."""
        described = self.ask(lambda: self.ask_topics([name]), name)[name]
        return TopicFacts(
            name=name, topic_id=str(described.topic_id), partitions=tuple(sorted(part.id for part in described.partitions))
        )

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset each partition still holds."""
        found = self._list(topic, partitions, OffsetSpec.earliest())
        return {partition: info.offset for partition, info in found.items()}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        """High watermark, or last stable offset under read_committed; exclusive."""
        found = self._list(topic, partitions, OffsetSpec.latest(), isolation_level)
        return {partition: info.offset for partition, info in found.items()}

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, FoundRecord]:
        """By offset the first record whose timestamp is `timestamp_ms` or later."""
        return to_found(self._list(topic, partitions, OffsetSpec.for_timestamp(timestamp_ms)))

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, FoundRecord]]:
        """The same for many timestamps, by timestamp; the questions are under way together."""
        found: dict[int, dict[int, FoundRecord]] = {stamp: {} for stamp in timestamps_ms}
        stamps = list(found)
        for begin in range(0, len(stamps), UNDER_WAY_MAX):
            some = stamps[begin : begin + UNDER_WAY_MAX]
            for (stamp, part), info in self.ask(partial(self._ask_each, topic, partitions, some), topic).items():
                found[stamp] |= to_found({part: info})
        return found

    def _ask_each(self, topic: str, partitions: Sequence[int], stamps: Iterable[int]) -> Mapping[tuple[int, int], Future[Any]]:
        return {
            (stamp, part): future
            for stamp in stamps
            for (_, part), future in self.ask_offsets(
                {(topic, partition): OffsetSpec.for_timestamp(stamp) for partition in partitions}
            ).items()
        }

    def newest(self, topic: str, partitions: Iterable[int]) -> dict[int, FoundRecord]:
        """By partition the record with the largest timestamp."""
        return to_found(self._list(topic, partitions, OffsetSpec.max_timestamp()))

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[FoundRecord]:
        """Reads a range, for the rare search that an index by time cannot answer."""
        for message in read_range(self.client_config, topic, partition, start_offset, end_offset):
            yield FoundRecord(offset=message.offset(), timestamp_ms=message.timestamp()[1])

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Witness]:
        """By partition the last record of the offsets [start, end), whatever became of its transaction. A partition that holds
        nothing there is not in the answer, nor is one whose log does not have the offset `start` (any more)."""
        return {part: to_witness(part, message) for part, message in self._single_records.last(topic, ranges).items()}

    def cluster_id(self) -> str | None:
        """Of the cluster that answers; None where it has no id."""
        found = self.ask(lambda: {"": self.ask_cluster()}, "")[""].cluster_id
        return None if found is None else str(found)

    def _list(self, topic: str, partitions: Iterable[int], spec: OffsetSpec, isolation_level: str = LATEST) -> dict[int, Any]:
        wanted = {(topic, partition): spec for partition in partitions}
        answers = self.ask(lambda: self.ask_offsets(wanted, isolation_level), topic)
        return {partition: info for (_, partition), info in answers.items()}


def to_witness(partition: int, message: Any) -> Witness:
    offset, stamp = message.offset(), message.timestamp()[1]
    hashed = as_signed(record_hash(partition, offset, stamp, message.key(), message.value(), message.headers() or ()))
    return Witness(offset=offset, timestamp_ms=stamp, hash=hashed, leader_epoch=message.leader_epoch())


def to_found(answers: Mapping[int, Any]) -> dict[int, FoundRecord]:
    """No match is offset -1, which must never be taken for an offset."""
    return {
        partition: FoundRecord(offset=info.offset, timestamp_ms=info.timestamp, leader_epoch=info.leader_epoch)
        for partition, info in answers.items()
        if info.offset >= 0
    }
