"""Every topic of a broker as a page shows them: partitions, leaders, offsets, how long records are kept, how fast they come.

Four requests to each broker, however many topics. How many bytes a topic takes only DescribeLogDirs would tell, which the
client does not ask: sizes are estimated from what loaded records had on average, and None where nobody has loaded any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logbus.errors import LogbusError
from logbus.windows.lag import NO_LIMIT
from logbus.windows.log_batches import Kind, LogBatches, Question, TopicPlaces
from logbus.windows.model import utc
from logbus.windows.rates import Rates

LATEST = "read_uncommitted"  # up to the high watermark, as kafka-topics and kafka-consumer-groups count


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReading:
    """A topic as it is now; offsets by partition. `problem` says what the broker did not tell."""

    name: str
    places: TopicPlaces | None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
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


def read_topics(log: LogBatches, rates: Rates, now: datetime) -> list[TopicReading]:
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
    return [to_reading(name, one, known, rates, utc(now)) for name, one in sorted(described.items())]


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
    size = None if topic.records is None or owners.bytes_each is None else round(topic.records * owners.bytes_each)
    return {
        "name": topic.name,
        "topic_id": topic.places and topic.places.topic_id,
        "partitions": len(places),
        "replicas": max((len(place.replicas) for place in places), default=0),
        "size_bytes": size,
        "size_is_estimated": size is not None,
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
                "size_bytes": partition_size(topic, place.partition, owners.bytes_each),
            }
            for place in places
        ],
    }


def partition_size(topic: TopicReading, partition: int, bytes_each: float | None) -> int | None:
    start, end = topic.starts.get(partition), topic.ends.get(partition)
    return None if start is None or end is None or bytes_each is None else round((end - start) * bytes_each)


def limit(settings: Mapping[str, str], name: str) -> int | None:
    """None where there is no limit, or nobody told."""
    text = settings.get(name, NO_LIMIT)
    return None if text == NO_LIMIT else int(text)
