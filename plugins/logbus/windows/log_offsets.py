"""What the ledger asks a broker: which topic, which offsets, which record comes first after an instant.

`OffsetLog` is the question list; `LogOffsets` asks a real broker by confluent-kafka's admin client, and the tests'
fake answers from memory; one contract suite runs over both. Offsets and timestamps only: no record's value is looked
at here. Timestamps are milliseconds since the epoch, as on the wire. Every call has a time limit, because admin calls
can hang.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from logbus.errors import BrokerUnavailable, TopicMissing
from logbus.windows.exact_reader import read_range

ISOLATION_LEVELS = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}

# A topic made a moment ago has no leader yet; the client says "retriable" and this is how long we wait between tries.
RETRY_PAUSE_SECONDS = 0.1

# Settings of other kinds of client that may stand in a connection's configuration; the admin client would warn about each.
NOT_FOR_ADMIN = (
    "group.",
    "auto.offset.reset",
    "enable.auto.",
    "enable.partition.eof",
    "isolation.level",
    "enable.idempotence",
    "acks",
)

logger = logging.getLogger("logbus.client")
logger.addHandler(logging.NullHandler())


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

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[FoundRecord]: ...


class LogOffsets:
    """The questions put to a real broker. Makes its client on first use; safe to build where no broker runs."""

    def __init__(self, client_config: Mapping[str, Any], *, timeout_seconds: float = 30.0) -> None:
        self.client_config = dict(client_config)
        self.timeout_seconds = timeout_seconds
        self._admin: AdminClient | None = None

    def topic(self, name: str) -> TopicFacts:
        """Id and partitions; `TopicMissing` where the broker has no such topic."""
        described = self._wait(lambda: self._client().describe_topics(TopicCollection([name]), **self._limits()), name)[name]
        return TopicFacts(
            name=name, topic_id=str(described.topic_id), partitions=tuple(sorted(part.id for part in described.partitions))
        )

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset each partition still holds."""
        found = self._list(topic, partitions, OffsetSpec.earliest())
        return {partition: info.offset for partition, info in found.items()}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        """High watermark, or last stable offset under read_committed; exclusive."""
        found = self._list(topic, partitions, OffsetSpec.latest(), isolation_level=ISOLATION_LEVELS[isolation_level])
        return {partition: info.offset for partition, info in found.items()}

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, FoundRecord]:
        """By offset the first record whose timestamp is `timestamp_ms` or later."""
        return self._found(self._list(topic, partitions, OffsetSpec.for_timestamp(timestamp_ms)))

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[FoundRecord]:
        """Reads a range, for the rare search that an index by time cannot answer."""
        for message in read_range(self.client_config, topic, partition, start_offset, end_offset):
            yield FoundRecord(offset=message.offset(), timestamp_ms=message.timestamp()[1])

    def _client(self) -> AdminClient:
        if self._admin is None:
            config = {key: value for key, value in self.client_config.items() if not key.startswith(NOT_FOR_ADMIN)}
            self._admin = AdminClient(config, logger=logger)
        return self._admin

    def _limits(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_seconds}

    def _list(self, topic: str, partitions: Iterable[int], spec: OffsetSpec, **options: Any) -> dict[int, Any]:
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        if not wanted:
            return {}
        answers = self._wait(lambda: self._client().list_offsets(wanted, **self._limits(), **options), topic)
        return {part.partition: info for part, info in answers.items()}

    @staticmethod
    def _found(answers: Mapping[int, Any]) -> dict[int, FoundRecord]:
        """No match is offset -1, which must never be taken for an offset."""
        return {
            partition: FoundRecord(offset=info.offset, timestamp_ms=info.timestamp, leader_epoch=info.leader_epoch)
            for partition, info in answers.items()
            if info.offset >= 0
        }

    def _wait(self, ask: Callable[[], dict[Any, Future[Any]]], topic: str) -> dict[Any, Any]:
        """All answers of one question; asks again while the broker says that it will know soon."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            try:
                return {key: future.result(self.timeout_seconds) for key, future in ask().items()}
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() in MISSING:
                    raise TopicMissing(
                        f"the broker at {self._address()} has no topic {topic!r}: create it, or ship something to it first"
                    ) from None
                if not reason.retriable() or time.monotonic() > deadline:
                    raise self._unavailable(reason.str()) from None
            except TimeoutError:
                raise self._unavailable(f"no answer within {self.timeout_seconds:g} s") from None
            time.sleep(RETRY_PAUSE_SECONDS)

    def _address(self) -> str:
        return str(self.client_config.get("bootstrap.servers", "(no bootstrap.servers given)"))

    def _unavailable(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"the broker at {self._address()} did not answer what was asked: {reason}. "
            "Check that it runs and that bootstrap.servers is right"
        )


MISSING: Sequence[int] = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
