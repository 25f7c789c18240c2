"""Topics as they are now: partitions, leaders, offsets, bytes, growth, retention; many of them in one request to each broker.

For pages, command line and exporter. A `Question` is one that `logbus.kafka.topics` would ask about one topic. `LogBatches`
answers any number of them together; where the single question would have raised an error, the answer is that error.
`TopicBatches` asks a real broker, the tests' fake answers from memory; one contract suite runs over both. A broker that does
not answer at all raises `BrokerUnavailable`.

What the broker does not report is None, and so is every total over it: a partition without a leader has no offsets, and then
the topic's number of records is unknown. Bytes are those on the broker's disks; where it does not report them, a page estimates
them from the average size of loaded records.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import Any, Protocol

from confluent_kafka.admin import OffsetSpec

from logbus.errors import BrokerUnavailable, LogbusError
from logbus.kafka.client import INTERNAL_PREFIX, LATEST, Client, PartitionId
from logbus.kafka.topics import (
    RETENTION_BYTES,
    RETENTION_MS,
    OffsetAndTimestamp,
    TopicFacts,
    limits_in_force,
    to_offsets_and_timestamps,
)

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
            result = self.client.outcome(
                future, question.topic, "DescribeConfigs" if question.kind is Kind.SETTINGS else "Describe"
            )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReading:
    """A topic as it is now; offsets and bytes on disk by partition. `error` is why part of the reading is missing."""

    name: str
    description: TopicDescription | None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    produced_per_second: float | None = None
    error: LogbusError | None = None

    @property
    def topic_id(self) -> str | None:
        return None if self.description is None else self.description.topic_id

    @property
    def partitions(self) -> tuple[PartitionDescription, ...]:
        return () if self.description is None else self.description.partitions

    @property
    def replication_factor(self) -> int:
        return max((len(part.replicas) for part in self.partitions), default=0)

    @property
    def records(self) -> int | None:
        """Offsets between start and end: an upper bound, as compaction and transaction markers leave holes."""
        return _known_sum(self.records_in(part.partition) for part in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """Bytes on disk, counting the largest replica of each partition."""
        return _known_sum(self.sizes.get(part.partition) for part in self.partitions)

    def records_in(self, partition: int) -> int | None:
        start, end = self.starts.get(partition), self.ends.get(partition)
        return None if start is None or end is None else end - start


def _known_sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is unknown, or there are none: a partial sum would be taken for the total."""
    reported = list(counts)
    return None if not reported or None in reported else sum(filter(None, reported))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOwners:
    """What the ledger has on a topic: its pipelines, whether logbus manages its retention, average bytes per record, audits of
    tables that something else loads from it."""

    pipelines: Sequence[str] = ()
    is_managed: bool | None = False  # None where the ledger could not be read
    bytes_each: float | None = None
    audits: Sequence[Mapping[str, Any]] = ()


# Returns the bytes on disk of each partition; raises `BrokerUnavailable` where the broker does not report them.
Sizes = Callable[[], Mapping[PartitionId, int]]


def read_topics(
    log: LogBatches, names: Iterable[str] | None = None, sizes: Sizes = dict, *, with_settings: bool = True
) -> list[TopicReading]:
    """The named topics in this order, or all but Kafka's own by name. `BrokerUnavailable` if no broker answers at all."""
    topics = log.topic_names() if names is None else list(names)
    described = log.topics(topics)
    led = led_partitions(described)
    with ThreadPoolExecutor(1) as executor:  # sizes use another client and take as long as the rest
        future_sizes = executor.submit(sizes)
        answers = log.answers([question for name in led for question in _questions(name, with_settings)], led)
    by_topic = {name: [answers.get(question, {}) for question in _questions(name)] for name in topics}
    return _with_sizes([_to_reading(name, described[name], by_topic[name]) for name in topics], future_sizes.result)


def _questions(topic: str, with_settings: bool = True) -> list[Question]:
    own = [Question(Kind.SETTINGS, topic)] if with_settings else []
    return [
        Question(Kind.START, topic),
        Question(Kind.END, topic, LATEST),
        *own,
    ]


def led_partitions(described: Mapping[str, TopicDescription | LogbusError]) -> dict[str, list[int]]:
    """By topic, the partitions that have a leader to ask."""
    return {
        name: [part.partition for part in topic.partitions if part.leader is not None]
        for name, topic in described.items()
        if isinstance(topic, TopicDescription)
    }


def _with_sizes(topics: list[TopicReading], sizes: Sizes) -> list[TopicReading]:
    """The topics with their sizes; unchanged if the broker does not report them (too old, or not to this user)."""
    try:
        bytes_of = sizes()
    except BrokerUnavailable:
        return topics
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), size in bytes_of.items():
        by_topic.setdefault(topic, {})[partition] = size
    return [replace(topic, sizes=by_topic.get(topic.name, {})) for topic in topics]


def _to_reading(name: str, described: TopicDescription | LogbusError, answers: Sequence[Any]) -> TopicReading:
    """A topic from the answers to its `_questions`, each of which may be an error."""
    if isinstance(described, LogbusError):
        return TopicReading(name=name, description=None, error=described)
    error = next((answer for answer in answers if isinstance(answer, LogbusError)), None)
    starts, ends, settings = ({} if isinstance(answer, LogbusError) else answer for answer in answers)
    return TopicReading(name=name, description=described, starts=starts, ends=ends, settings=settings, error=error)


def with_rates(topics: Iterable[TopicReading], rates: ProduceRates, now: datetime) -> list[TopicReading]:
    """The topics with their growth rates, where their end offsets were seen before."""
    return [replace(topic, produced_per_second=_rate_of(topic, rates, now)) for topic in topics]


def _rate_of(topic: TopicReading, rates: ProduceRates, now: datetime) -> float | None:
    """Records per second. A reading that lacks some partitions is not recorded as a sample."""
    key = f"{topic.topic_id} {LATEST}"
    if topic.ends and len(topic.ends) == len(topic.partitions):
        rates.record(key, topic.ends, now)
    return rates.per_second(key)


def topic_json(topic: TopicReading, owners: TopicOwners) -> dict[str, Any]:
    """As JSON-ready values."""
    sizes = {part.partition: _partition_size(topic, part.partition, owners.bytes_each) for part in topic.partitions}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "replicas": topic.replication_factor,
        "size_bytes": _known_sum(sizes.values()),
        "size_is_estimated": _known_sum(sizes.values()) is not None and topic.size_bytes is None,
        "records": topic.records,
        "produced_per_second": topic.produced_per_second,
        "pipelines": list(owners.pipelines),
        "audits": list(owners.audits),
        "retention": retention_json(topic.settings, owners.is_managed),
        "problem": None if topic.error is None else str(topic.error),
        "partition_list": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "start_offset": topic.starts.get(part.partition),
                "end_offset": topic.ends.get(part.partition),
                "size_bytes": sizes[part.partition],
            }
            for part in topic.partitions
        ],
    }


def _partition_size(topic: TopicReading, partition: int, bytes_each: float | None) -> int | None:
    """Bytes on disk, estimated from the record count where the broker does not report them; None where that is unknown too."""
    if partition in topic.sizes:
        return topic.sizes[partition]
    records = topic.records_in(partition)
    return None if records is None or bytes_each is None else round(records * bytes_each)


def retention_json(settings: Mapping[str, str], is_managed: bool | None) -> dict[str, Any] | None:
    """How long records are kept; None if unknown. A topic that is only compacted loses none by age or size."""
    if not settings and not is_managed:
        return None
    limits = limits_in_force(settings)
    return {"ms": limits.get(RETENTION_MS), "bytes": limits.get(RETENTION_BYTES), "managed": is_managed}


# How fast topics grow, computed from end offsets at two instants. It costs no request: code that reads end offsets for another
# reason records them here. One sample gives no rate. A topic that was recreated is a different topic: its id is part of the key.

# The time that a rate is averaged over: long enough to smooth bursts, short enough to show that a producer has stopped.
RATE_WINDOW = timedelta(minutes=5)

# Two looks closer together than this would show jitter.
SAMPLES_APART_MIN = timedelta(seconds=2)

SAMPLES_MAX = 64  # per topic; the oldest is dropped first
TOPICS_MAX = 10_000  # the one added first is dropped


@dataclass(frozen=True, slots=True)
class EndOffsetSample:
    """The sum of a topic's end offsets at an instant."""

    at: datetime
    records: int


class ProduceRates:
    """Shared by all threads of a process."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[EndOffsetSample]] = {}
        self._lock = Lock()

    def record(self, key: str, ends: Mapping[int, int], at: datetime) -> None:
        """Records the end offsets seen of the topic with this key (its id, and whatever else distinguishes it)."""
        sample = EndOffsetSample(at, sum(ends.values()))
        with self._lock:
            if key not in self._samples and len(self._samples) >= TOPICS_MAX:
                self._samples.pop(next(iter(self._samples)))
            samples = self._samples.setdefault(key, deque(maxlen=SAMPLES_MAX))
            if samples and (sample.at - samples[-1].at < SAMPLES_APART_MIN or sample.records < samples[-1].records):
                return
            samples.append(sample)
            while sample.at - samples[0].at > RATE_WINDOW and len(samples) > 2:
                samples.popleft()

    def per_second(self, key: str) -> float | None:
        """Records per second between the oldest look kept and the newest."""
        with self._lock:
            samples = self._samples.get(key)
            if not samples or len(samples) < 2:
                return None
            first, last = samples[0], samples[-1]
        return (last.records - first.records) / (last.at - first.at).total_seconds()
