"""Questions about many topics at once: what a page that shows all of them asks, in as many requests as there are brokers.

A `Question` is one that `logbus.windows.log_offsets` would ask about one topic; `LogBatches` answers any number of them together,
and an answer may be the error that it would have been. `TopicBatches` asks a real broker, the tests' fake answers from memory;
one contract suite runs over both. A broker that answers nothing at all is a `BrokerUnavailable`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Any, Protocol

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from logbus.errors import BrokerUnavailable, LogbusError, TopicMissing
from logbus.windows.admin_requests import MISSING, AdminRequests
from logbus.windows.log_offsets import ISOLATION_LEVELS, FoundRecord, TopicFacts, to_found

# Pages wait for it. What a healthy broker takes a tenth of a second for is not worth more.
PAGE_TIMEOUT_SECONDS = 4.0

INTERNAL_PREFIX = "__"  # Kafka's own topics, as kafka-topics --exclude-internal knows them


class Kind(StrEnum):
    START = "start offsets"
    END = "end offsets"
    AT = "first records at or after an instant"
    SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class Question:
    """About all partitions of a topic. `detail` is the isolation level of END and the milliseconds of AT."""

    kind: Kind
    topic: str
    detail: str | int = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where a partition lies: the id of its leader, None where it has none now, and of its replicas."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlaces:
    """A topic as the broker describes it."""

    name: str
    topic_id: str
    partitions: tuple[PartitionPlace, ...]

    @property
    def facts(self) -> TopicFacts:
        return TopicFacts(name=self.name, topic_id=self.topic_id, partitions=tuple(one.partition for one in self.partitions))


class LogBatches(Protocol):
    """The questions. Answers of START and END are offsets by partition, of AT `FoundRecord`s, of SETTINGS texts by name."""

    def topic_names(self) -> list[str]: ...

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]: ...

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]: ...


class TopicBatches(AdminRequests):
    """The questions put to a real broker. Safe to share between threads: the client is."""

    def __init__(self, client_config: Mapping[str, Any], *, timeout_seconds: float = PAGE_TIMEOUT_SECONDS) -> None:
        super().__init__(client_config, timeout_seconds=timeout_seconds)
        self._making = Lock()

    def client(self) -> AdminClient:
        """One for all threads: a second would take its answers with it when it is dropped."""
        with self._making:
            return super().client()

    def topic_names(self) -> list[str]:
        """All but Kafka's own."""
        try:
            found = self.client().list_topics(timeout=self.timeout_seconds).topics
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        return sorted(name for name in found if not name.startswith(INTERNAL_PREFIX))

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]:
        """Each as it is now, or why nobody knows."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        asked = self.client().describe_topics(TopicCollection(wanted), **self.limits())
        found = {name: self.outcome(future, name) for name, future in asked.items()}
        return {name: one if isinstance(one, LogbusError) else to_places(one) for name, one in found.items()}

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        """All at once; `partitions` are those of each topic."""
        asked = [*self._ask_offsets(questions, partitions), *self._ask_settings(questions)]
        known: dict[Question, Any] = {question: {} for question in questions}
        for question, part, future in asked:
            found = self.outcome(future, question.topic)
            if isinstance(found, LogbusError):
                known[question] = found
            elif not isinstance(known[question], LogbusError):
                known[question] |= one_answer(question, part, found)
        return known

    def _ask_offsets(
        self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[Question, int, Future[Any]]]:
        """One call holds each partition once and has one isolation level; the calls are under way together."""
        for batch in batches([one for one in questions if one.kind is not Kind.SETTINGS]):
            owner = {(one.topic, part): one for one in batch for part in partitions.get(one.topic, ())}
            wanted = {TopicPartition(topic, part): spec_of(one) for (topic, part), one in owner.items()}
            isolation = isolation_of(batch[0])
            options = {"isolation_level": ISOLATION_LEVELS[isolation]} if isolation else {}
            if wanted:
                for place, future in self.client().list_offsets(wanted, **self.limits(), **options).items():
                    yield owner[place.topic, place.partition], place.partition, future

    def _ask_settings(self, questions: Collection[Question]) -> Iterator[tuple[Question, int, Future[Any]]]:
        asked = {one.topic: one for one in questions if one.kind is Kind.SETTINGS}
        if asked:
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in asked]
            for resource, future in self.client().describe_configs(resources, **self.limits()).items():
                yield asked[resource.name], 0, future

    def outcome(self, future: Future[Any], topic: str) -> Any:
        """The answer, or its error in our words (not raised)."""
        try:
            return future.result(self.timeout_seconds + 1)  # the client's own limit comes first
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                return TopicMissing(f"the broker has no topic {topic!r}")
            return BrokerUnavailable(f"the broker does not tell about {topic!r}: {error.args[0].str()}")
        except TimeoutError:
            return BrokerUnavailable(f"the broker does not tell about {topic!r} within {self.timeout_seconds:g} s")


def batches(questions: Iterable[Question]) -> list[list[Question]]:
    """Lists in which each topic comes once and all questions have one isolation level."""
    made: dict[tuple[str, int], list[Question]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for question in questions:
        isolation = isolation_of(question)
        made.setdefault((isolation, times[isolation, question.topic]), []).append(question)
        times[isolation, question.topic] += 1
    return list(made.values())


def isolation_of(question: Question) -> str:
    return str(question.detail) if question.kind is Kind.END else ""


def spec_of(question: Question) -> OffsetSpec:
    if question.kind is Kind.AT:
        return OffsetSpec.for_timestamp(int(question.detail))
    return OffsetSpec.earliest() if question.kind is Kind.START else OffsetSpec.latest()


def one_answer(question: Question, part: int, found: Any) -> dict[Any, Any]:
    """What the client's answer about one partition (or the settings) adds to the question's."""
    if question.kind is Kind.SETTINGS:
        return {name: str(entry.value) for name, entry in found.items()}
    if question.kind is Kind.AT:
        records: dict[int, FoundRecord] = to_found({part: found})
        return records
    return {part: found.offset}


def to_places(described: Any) -> TopicPlaces:
    places = (
        PartitionPlace(
            partition=part.id,
            leader=part.leader.id if part.leader is not None and part.leader.id >= 0 else None,
            replicas=tuple(node.id for node in part.replicas),
        )
        for part in described.partitions
    )
    by_number = sorted(places, key=lambda place: place.partition)
    return TopicPlaces(name=described.name, topic_id=str(described.topic_id), partitions=tuple(by_number))
