"""Questions about many topics at once, for pages that show all of them: one request per broker instead of one per topic.

A `Question` is one that `logbus.kafka.topics` would ask about one topic. `LogBatches` answers any number of them together;
where the single question would have raised an error, the answer is that error. `TopicBatches` asks a real broker, the tests' fake
answers from memory; one contract suite runs over both. A broker that does not answer at all raises `BrokerUnavailable`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from confluent_kafka.admin import OffsetSpec

from logbus.errors import LogbusError
from logbus.kafka.client import INTERNAL_PREFIX, LATEST, Client
from logbus.kafka.topics import FoundRecord, TopicFacts, to_found

# A page waits this long at most; then it shows the last answer with its age, and asks again by itself. A healthy broker answers
# in a tenth of a second.
PAGE_TIMEOUT_SECONDS = 4.0


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
    """Where a partition is: broker ids of its leader (None while it has none), its replicas and its in-sync replicas."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


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
    """The questions. START and END return offsets by partition, AT `FoundRecord`s by partition, SETTINGS values by name."""

    def topic_names(self, *, with_internal: bool = False) -> list[str]: ...

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]: ...

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]: ...


class TopicBatches:
    """The questions, asked of a real broker. Safe to share between threads, as the client is."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def topic_names(self, *, with_internal: bool = False) -> list[str]:
        """All topics, with or without Kafka's internal ones."""
        found = self.client.metadata().topics
        return sorted(name for name in found if with_internal or not name.startswith(INTERNAL_PREFIX))

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]:
        """Each topic as it is now, or the error that its description failed with."""
        wanted = sorted(set(names))
        asked = self.client.ask_topics(wanted) if wanted else {}
        found = {name: self.client.outcome(future, name) for name, future in asked.items()}
        return {name: one if isinstance(one, LogbusError) else to_places(one) for name, one in found.items()}

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        """All answers at once; `partitions` lists those to ask about, by topic."""
        asked = [*self._ask_offsets(questions, partitions), *self._ask_settings(questions)]
        known: dict[Question, Any] = {question: {} for question in questions}
        for question, part, future in asked:
            found = self.client.outcome(future, question.topic)
            if isinstance(found, LogbusError):
                known[question] = found
            elif not isinstance(known[question], LogbusError):
                known[question] |= one_answer(question, part, found)
        return known

    def _ask_offsets(
        self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[Question, int, Future[Any]]]:
        """One call takes each partition once and a single isolation level; all calls are in flight together."""
        for batch in batches([one for one in questions if one.kind is not Kind.SETTINGS]):
            owner = {(one.topic, part): one for one in batch for part in partitions.get(one.topic, ())}
            asked = self.client.ask_offsets({place: spec_of(one) for place, one in owner.items()}, isolation_of(batch[0]))
            for place, future in asked.items():
                yield owner[place], place[1], future

    def _ask_settings(self, questions: Collection[Question]) -> Iterator[tuple[Question, int, Future[Any]]]:
        asked = {one.topic: one for one in questions if one.kind is Kind.SETTINGS}
        for topic, future in self.client.ask_settings(asked).items():
            yield asked[topic], 0, future


def batches(questions: Iterable[Question]) -> list[list[Question]]:
    """Lists in which each topic occurs once and all questions share one isolation level."""
    made: dict[tuple[str, int], list[Question]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for question in questions:
        isolation = isolation_of(question)
        made.setdefault((isolation, times[isolation, question.topic]), []).append(question)
        times[isolation, question.topic] += 1
    return list(made.values())


def isolation_of(question: Question) -> str:
    return str(question.detail) if question.kind is Kind.END else LATEST


def spec_of(question: Question) -> OffsetSpec:
    if question.kind is Kind.AT:
        return OffsetSpec.for_timestamp(int(question.detail))
    return OffsetSpec.earliest() if question.kind is Kind.START else OffsetSpec.latest()


def one_answer(question: Question, part: int, found: Any) -> dict[Any, Any]:
    """What the client's answer for one partition (or for the settings) adds to the answer of its question."""
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
            in_sync=tuple(node.id for node in part.isr),
        )
        for part in described.partitions
    )
    by_number = sorted(places, key=lambda place: place.partition)
    return TopicPlaces(name=described.name, topic_id=str(described.topic_id), partitions=tuple(by_number))
