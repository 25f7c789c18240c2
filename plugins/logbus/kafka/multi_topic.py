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
from logbus.kafka.topics import OffsetAndTimestamp, TopicFacts, to_offsets_and_timestamps

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
class PartitionDescription:
    """A partition as the broker describes it: ids of its leader (None while it has none), replicas and in-sync replicas."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the broker describes it."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]

    @property
    def facts(self) -> TopicFacts:
        return TopicFacts(name=self.name, topic_id=self.topic_id, partitions=tuple(part.partition for part in self.partitions))


class LogBatches(Protocol):
    """START and END return offsets by partition, AT `OffsetAndTimestamp`s by partition, SETTINGS values by name."""

    def topic_names(self, *, with_internal: bool = False) -> list[str]: ...

    def topics(self, names: Iterable[str]) -> dict[str, TopicDescription | LogbusError]: ...

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]: ...


class TopicBatches:
    """The questions, asked of a real broker. Safe to share between threads, as the client is."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def topic_names(self, *, with_internal: bool = False) -> list[str]:
        """All topics, with or without Kafka's internal ones."""
        names = self.client.metadata().topics
        return sorted(name for name in names if with_internal or not name.startswith(INTERNAL_PREFIX))

    def topics(self, names: Iterable[str]) -> dict[str, TopicDescription | LogbusError]:
        """Each topic as it is now, or the error that its description failed with."""
        unique = sorted(set(names))
        futures = self.client.ask_topics(unique) if unique else {}
        answers = {name: self.client.outcome(future, name) for name, future in futures.items()}
        return {name: answer if isinstance(answer, LogbusError) else _to_description(answer) for name, answer in answers.items()}

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        """All answers at once; `partitions` lists those to ask about, by topic."""
        requests = [*self._ask_offsets(questions, partitions), *self._ask_settings(questions)]
        answers: dict[Question, Any] = {question: {} for question in questions}
        for question, part, future in requests:
            result = self.client.outcome(future, question.topic)
            if isinstance(result, LogbusError):
                answers[question] = result
            elif not isinstance(answers[question], LogbusError):
                answers[question] |= _partial_answer(question, part, result)
        return answers

    def _ask_offsets(
        self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[Question, int, Future[Any]]]:
        """One call takes each partition once and a single isolation level; all calls are in flight together."""
        for batch in _batches([question for question in questions if question.kind is not Kind.SETTINGS]):
            question_of = {(question.topic, part): question for question in batch for part in partitions.get(question.topic, ())}
            specs = {partition_id: _offset_spec(question) for partition_id, question in question_of.items()}
            for partition_id, future in self.client.ask_offsets(specs, _isolation_of(batch[0])).items():
                yield question_of[partition_id], partition_id[1], future

    def _ask_settings(self, questions: Collection[Question]) -> Iterator[tuple[Question, int, Future[Any]]]:
        by_topic = {question.topic: question for question in questions if question.kind is Kind.SETTINGS}
        for topic, future in self.client.ask_settings(by_topic).items():
            yield by_topic[topic], 0, future


def _batches(questions: Iterable[Question]) -> list[list[Question]]:
    """Lists in which each topic occurs once and all questions share one isolation level."""
    by_round: dict[tuple[str, int], list[Question]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for question in questions:
        isolation = _isolation_of(question)
        by_round.setdefault((isolation, times[isolation, question.topic]), []).append(question)
        times[isolation, question.topic] += 1
    return list(by_round.values())


def _isolation_of(question: Question) -> str:
    return str(question.detail) if question.kind is Kind.END else LATEST


def _offset_spec(question: Question) -> OffsetSpec:
    if question.kind is Kind.AT:
        return OffsetSpec.for_timestamp(int(question.detail))
    return OffsetSpec.earliest() if question.kind is Kind.START else OffsetSpec.latest()


def _partial_answer(question: Question, part: int, result: Any) -> dict[Any, Any]:
    """What the client's answer for one partition (or for the settings) adds to the answer of its question."""
    if question.kind is Kind.SETTINGS:
        return {name: str(entry.value) for name, entry in result.items()}
    if question.kind is Kind.AT:
        records: dict[int, OffsetAndTimestamp] = to_offsets_and_timestamps({part: result})
        return records
    return {part: result.offset}


def _to_description(described: Any) -> TopicDescription:
    partitions = (
        PartitionDescription(
            partition=part.id,
            leader=part.leader.id if part.leader is not None and part.leader.id >= 0 else None,
            replicas=tuple(node.id for node in part.replicas),
            in_sync=tuple(node.id for node in part.isr),
        )
        for part in described.partitions
    )
    by_number = tuple(sorted(partitions, key=lambda part: part.partition))
    return TopicDescription(name=described.name, topic_id=str(described.topic_id), partitions=by_number)
