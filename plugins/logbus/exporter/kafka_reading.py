"""Everything a scrape asks the broker: one Metadata request, two ListOffsets over all partitions, and the groups.

There is no request per partition. A partition that cannot be read now (no leader, a damaged log) has no offsets in the reading
and does not affect the others; a group that cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka.admin import OffsetSpec

from logbus.errors import LogbusError, UserError
from logbus.kafka.client import INTERNAL_PREFIX, Client, Place
from logbus.kafka.groups import GroupReading, Groups

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReading:
    """A partition as it is now. An offset that could not be read is None."""

    topic: str
    partition: int
    leader: int | None
    replicas: int
    in_sync: int
    start_offset: int | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReading:
    """The cluster at one moment. `waiting` is how long each group's next record has been in the log, where that is known."""

    cluster_id: str
    brokers: Mapping[int, str]
    partitions: tuple[PartitionReading, ...]
    groups: tuple[GroupReading, ...]
    waiting: Mapping[tuple[str, Place], float] = field(default_factory=dict)

    @property
    def ends(self) -> dict[Place, int]:
        return {(one.topic, one.partition): one.end_offset for one in self.partitions if one.end_offset is not None}


class KafkaReader:
    """Asks a real broker. `topic_filter` and `group_filter` are regular expressions that must match the whole name."""

    def __init__(self, client: Client, *, topic_filter: str = ".*", group_filter: str = ".*") -> None:
        self.client = client
        self._topics, self._groups = pattern(topic_filter), pattern(group_filter)

    def read(self) -> KafkaReading:
        """The whole reading; `BrokerUnavailable` where the broker does not answer."""
        metadata, reader = self.client.metadata(), Groups(self.client)
        found = [part for name, topic in metadata.topics.items() if self._is_wanted(name) for part in partitions_of(name, topic)]
        starts, ends = self._bounds(found, OffsetSpec.earliest()), self._bounds(found, OffsetSpec.latest())
        groups = reader.read([name for name in reader.states() if self._groups.fullmatch(name)])
        return KafkaReading(
            cluster_id=metadata.cluster_id or "",
            brokers={broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()},
            partitions=tuple(with_offsets(part, starts, ends) for part in found),
            groups=tuple(one for one in groups if one.error is None),
        )

    def _is_wanted(self, topic: str) -> bool:
        return not topic.startswith(INTERNAL_PREFIX) and self._topics.fullmatch(topic) is not None

    def _bounds(self, partitions: Sequence[PartitionReading], spec: OffsetSpec) -> dict[Place, int]:
        wanted = {(one.topic, one.partition): spec for one in partitions if one.leader is not None}
        found = {place: self.client.outcome(future, place[0]) for place, future in self.client.ask_offsets(wanted).items()}
        refusals = [one for one in found.values() if isinstance(one, LogbusError)]
        if refusals and len(refusals) == len(found):
            raise refusals[0]
        return {place: info.offset for place, info in found.items() if not isinstance(info, LogbusError) and info.offset >= 0}


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{text!r} is not a pattern of names: {error}") from None


def partitions_of(name: str, topic: Any) -> Iterable[PartitionReading]:
    for number, part in sorted(topic.partitions.items()):
        leader = None if part.leader == NO_LEADER else part.leader
        yield PartitionReading(topic=name, partition=number, leader=leader, replicas=len(part.replicas), in_sync=len(part.isrs))


def with_offsets(part: PartitionReading, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> PartitionReading:
    place = (part.topic, part.partition)
    return replace(part, start_offset=starts.get(place), end_offset=ends.get(place))
