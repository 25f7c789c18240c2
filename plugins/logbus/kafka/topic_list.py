"""Topics as they are now: partitions, leaders, offsets, bytes, how long records are kept. For pages, command line and exporter.

A handful of requests to each broker, however many topics. What the broker does not report is None, and so is every total over it:
a partition without a leader has no offsets, and then the topic's number of records is unknown. Bytes are those on the broker's
disks; where it does not report them, a page estimates them from the average size of loaded records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from logbus.errors import BrokerUnavailable, LogbusError
from logbus.kafka.batches import Kind, LogBatches, PartitionPlace, Question, TopicPlaces
from logbus.kafka.client import LATEST, Place
from logbus.kafka.own_limits import RETENTION_BYTES, RETENTION_MS, limits_in_force
from logbus.kafka.rates import Rates
from logbus.model import utc


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReading:
    """A topic as it is now; offsets and bytes on disk by partition. `error` is why part of the reading is missing."""

    name: str
    places: TopicPlaces | None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    produced_per_second: float | None = None
    error: LogbusError | None = None

    @property
    def topic_id(self) -> str | None:
        return None if self.places is None else self.places.topic_id

    @property
    def partitions(self) -> tuple[PartitionPlace, ...]:
        return () if self.places is None else self.places.partitions

    @property
    def replication_factor(self) -> int:
        return max((len(place.replicas) for place in self.partitions), default=0)

    @property
    def records(self) -> int | None:
        """Offsets between start and end: an upper bound, as compaction and transaction markers leave holes."""
        return known_sum(self.records_in(place.partition) for place in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """Bytes on disk, counting the largest replica of each partition."""
        return known_sum(self.sizes.get(place.partition) for place in self.partitions)

    def records_in(self, partition: int) -> int | None:
        start, end = self.starts.get(partition), self.ends.get(partition)
        return None if start is None or end is None else end - start


def known_sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is unknown, or there are none: a partial sum would be taken for the total."""
    listed = list(counts)
    known = [count for count in listed if count is not None]
    return sum(known) if listed and len(known) == len(listed) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOwners:
    """What the ledger has on a topic: its pipelines, whether logbus manages its retention, average bytes per record."""

    pipelines: Sequence[str] = ()
    is_managed: bool | None = False  # None where the ledger could not be read
    bytes_each: float | None = None


# Returns the bytes on disk of each partition; raises `BrokerUnavailable` where the broker does not report them.
Sizes = Callable[[], Mapping[Place, int]]


def read_topics(
    log: LogBatches, names: Iterable[str] | None = None, sizes: Sizes = dict, *, with_settings: bool = True
) -> list[TopicReading]:
    """The named topics in this order, or all but Kafka's own by name. `BrokerUnavailable` if no broker answers at all."""
    wanted = log.topic_names() if names is None else list(names)
    described = log.topics(wanted)
    led = led_partitions(described)
    with ThreadPoolExecutor(1) as beside:  # sizes use another client and take as long as the rest
        asked_sizes = beside.submit(sizes)
        known = log.answers([question for name in led for question in questions(name, with_settings)], led)
    answers = {name: [known.get(asked, {}) for asked in questions(name)] for name in wanted}
    return with_sizes([to_reading(name, described[name], answers[name]) for name in wanted], asked_sizes.result)


def questions(topic: str, with_settings: bool = True) -> list[Question]:
    own = [Question(Kind.SETTINGS, topic)] if with_settings else []
    return [Question(Kind.START, topic), Question(Kind.END, topic, LATEST), *own]


def led_partitions(described: Mapping[str, TopicPlaces | LogbusError]) -> dict[str, list[int]]:
    """By topic, the partitions that have a leader to ask."""
    return {
        name: [place.partition for place in one.partitions if place.leader is not None]
        for name, one in described.items()
        if isinstance(one, TopicPlaces)
    }


def with_sizes(topics: list[TopicReading], sizes: Sizes) -> list[TopicReading]:
    """The topics with their sizes; unchanged if the broker does not report them (too old, or not to this user)."""
    try:
        known = sizes()
    except BrokerUnavailable:
        return topics
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), size in known.items():
        by_topic.setdefault(topic, {})[partition] = size
    return [replace(one, sizes=by_topic.get(one.name, {})) for one in topics]


def to_reading(name: str, described: TopicPlaces | LogbusError, answers: Sequence[Any]) -> TopicReading:
    """A topic from the answers to its `questions`, each of which may be an error."""
    if isinstance(described, LogbusError):
        return TopicReading(name=name, places=None, error=described)
    error = next((one for one in answers if isinstance(one, LogbusError)), None)
    starts, ends, settings = ({} if isinstance(one, LogbusError) else one for one in answers)
    return TopicReading(name=name, places=described, starts=starts, ends=ends, settings=settings, error=error)


def with_rates(topics: Iterable[TopicReading], rates: Rates, now: datetime) -> list[TopicReading]:
    """The topics with their growth rates, where their end offsets were seen before."""
    return [replace(one, produced_per_second=rate_of(one, rates, utc(now))) for one in topics]


def rate_of(topic: TopicReading, rates: Rates, now: datetime) -> float | None:
    """Records per second. A reading that lacks some partitions is not recorded as a look."""
    key = f"{topic.topic_id} {LATEST}"
    if topic.ends and len(topic.ends) == len(topic.partitions):
        rates.put_down(key, topic.ends, now)
    return rates.per_second(key)


def topic_json(topic: TopicReading, owners: TopicOwners) -> dict[str, Any]:
    """As JSON-ready values."""
    sizes = {place.partition: partition_size(topic, place.partition, owners.bytes_each) for place in topic.partitions}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "replicas": topic.replication_factor,
        "size_bytes": known_sum(sizes.values()),
        "size_is_estimated": known_sum(sizes.values()) is not None and topic.size_bytes is None,
        "records": topic.records,
        "produced_per_second": topic.produced_per_second,
        "pipelines": list(owners.pipelines),
        "retention": retention_json(topic.settings, owners.is_managed),
        "problem": None if topic.error is None else str(topic.error),
        "partition_list": [
            {
                "partition": place.partition,
                "leader": place.leader,
                "start_offset": topic.starts.get(place.partition),
                "end_offset": topic.ends.get(place.partition),
                "size_bytes": sizes[place.partition],
            }
            for place in topic.partitions
        ],
    }


def partition_size(topic: TopicReading, partition: int, bytes_each: float | None) -> int | None:
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
