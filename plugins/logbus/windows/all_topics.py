"""Every topic of a broker as a page shows them: partitions, leaders, offsets, how long records are kept, how fast they come.

A handful of requests to each broker, however many topics. Bytes are those on its disks; where it does not tell them, they are
estimated from what loaded records had on average, and None where nobody has loaded any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from logbus.errors import BrokerUnavailable, LogbusError
from logbus.windows.lag import NO_LIMIT
from logbus.windows.log_batches import Kind, LogBatches, Question, TopicPlaces
from logbus.windows.model import utc
from logbus.windows.rates import Rates

LATEST = "read_uncommitted"  # up to the high watermark, as kafka-topics and kafka-consumer-groups count


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReading:
    """A topic as it is now; offsets, and bytes on disk, by partition. `problem` says what the broker did not tell."""

    name: str
    places: TopicPlaces | None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    produced_per_second: float | None = None
    problem: str | None = None

    @property
    def records(self) -> int | None:
        """Offsets between start and end, which is what compaction and transactions leave of records at most."""
        if not self.starts or not self.ends:
            return None
        return sum(end - self.starts.get(part, end) for part, end in self.ends.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOwners:
    """What the ledger knows of a topic: its pipelines, whether logbus manages its retention, bytes of a record on average."""

    pipelines: Sequence[str] = ()
    is_managed: bool = False
    bytes_each: float | None = None


# Bytes on disk of each partition; `BrokerUnavailable` where the broker does not tell.
Sizes = Callable[[], Mapping[tuple[str, int], int]]


def read_topics(log: LogBatches, rates: Rates, now: datetime, sizes: Sizes = dict) -> list[TopicReading]:
    """By name. `BrokerUnavailable` where the broker does not answer."""
    described = log.topics(log.topic_names())
    partitions = {name: one.facts.partitions for name, one in described.items() if isinstance(one, TopicPlaces)}
    known = log.answers(
        [
            Question(*words)
            for name in partitions
            for words in ((Kind.START, name), (Kind.END, name, LATEST), (Kind.SETTINGS, name))
        ],
        partitions,
    )
    found = [to_reading(name, one, known, rates, utc(now)) for name, one in sorted(described.items())]
    return with_sizes(found, sizes)


def with_sizes(topics: Sequence[TopicReading], sizes: Sizes) -> list[TopicReading]:
    """The topics as they are, where nobody tells: an older broker, or one that lets this user not ask."""
    try:
        known = sizes()
    except BrokerUnavailable:
        return list(topics)
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), size in known.items():
        by_topic.setdefault(topic, {})[partition] = size
    return [replace(one, sizes=by_topic.get(one.name, {})) for one in topics]


def to_reading(
    name: str, described: TopicPlaces | LogbusError, known: Mapping[Question, Any], rates: Rates, now: datetime
) -> TopicReading:
    if isinstance(described, LogbusError):
        return TopicReading(name=name, places=None, problem=str(described))
    answers = [known.get(Question(*words)) for words in ((Kind.START, name), (Kind.END, name, LATEST), (Kind.SETTINGS, name))]
    problem = next((str(one) for one in answers if isinstance(one, LogbusError)), None)
    starts, ends, settings = ({} if one is None or isinstance(one, LogbusError) else one for one in answers)
    key = f"{described.topic_id} {LATEST}"
    if ends:
        rates.put_down(key, ends, now)
    return TopicReading(
        name=name,
        places=described,
        starts=starts,
        ends=ends,
        settings=settings,
        produced_per_second=rates.per_second(key),
        problem=problem,
    )


def topic_json(topic: TopicReading, owners: TopicOwners) -> dict[str, Any]:
    """As JSON-ready values."""
    places = topic.places.partitions if topic.places else ()
    sizes = {place.partition: partition_size(topic, place.partition, owners.bytes_each) for place in places}
    is_known = bool(sizes) and all(size is not None for size in sizes.values())
    size = sum(size or 0 for size in sizes.values()) if is_known else None
    return {
        "name": topic.name,
        "topic_id": topic.places and topic.places.topic_id,
        "partitions": len(places),
        "replicas": max((len(place.replicas) for place in places), default=0),
        "size_bytes": size,
        "size_is_estimated": size is not None and any(part not in topic.sizes for part in sizes),
        "records": topic.records,
        "produced_per_second": topic.produced_per_second,
        "pipelines": list(owners.pipelines),
        "retention": {
            "ms": limit(topic.settings, "retention.ms"),
            "bytes": limit(topic.settings, "retention.bytes"),
            "managed": owners.is_managed,
        },
        "problem": topic.problem,
        "partition_list": [
            {
                "partition": place.partition,
                "leader": place.leader,
                "start_offset": topic.starts.get(place.partition),
                "end_offset": topic.ends.get(place.partition),
                "size_bytes": sizes[place.partition],
            }
            for place in places
        ],
    }


def partition_size(topic: TopicReading, partition: int, bytes_each: float | None) -> int | None:
    """On disk; or by the records, where the broker does not tell; None where nobody knows."""
    if partition in topic.sizes:
        return topic.sizes[partition]
    start, end = topic.starts.get(partition), topic.ends.get(partition)
    return None if start is None or end is None or bytes_each is None else round((end - start) * bytes_each)


def limit(settings: Mapping[str, str], name: str) -> int | None:
    """None where there is no limit, or nobody told."""
    text = settings.get(name, NO_LIMIT)
    return None if text == NO_LIMIT else int(text)
