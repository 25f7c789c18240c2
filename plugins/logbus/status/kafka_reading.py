"""Everything a scrape asks the broker: one Metadata request, two ListOffsets over all partitions, and the groups.

There is no request per partition. A partition that cannot be read now (no leader, a damaged log) has no offsets in the reading
and does not affect the others; a group that cannot be read is left out.

A broker finds the offset for a time, not the time of an offset, and reading a record of each partition at each scrape would
cost more than everything else. So each scrape leaves a note (`Arrivals`), and a group's lag in seconds is the age of the first
note past the offset that it reads next: only what was seen here, with no guess between two notes. Records older than the first
note have no known age.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka.admin import OffsetSpec

from logbus.errors import LogbusError, UserError
from logbus.kafka.client import INTERNAL_PREFIX, Client, PartitionId
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
    waiting: Mapping[tuple[str, PartitionId], float] = field(default_factory=dict)

    @property
    def ends(self) -> dict[PartitionId, int]:
        return {(part.topic, part.partition): part.end_offset for part in self.partitions if part.end_offset is not None}


class KafkaReader:
    """Asks a real broker. `topic_filter` and `group_filter` are regular expressions that must match the whole name."""

    def __init__(self, client: Client, *, topic_filter: str = ".*", group_filter: str = ".*") -> None:
        self.client = client
        self._topics, self._groups = pattern(topic_filter), pattern(group_filter)

    def read(self) -> KafkaReading:
        """The whole reading; `BrokerUnavailable` where the broker does not answer."""
        metadata, reader = self.client.metadata(), Groups(self.client)
        partitions = [
            part for name, topic in metadata.topics.items() if self._is_wanted(name) for part in partitions_of(name, topic)
        ]
        starts, ends = self._bounds(partitions, OffsetSpec.earliest()), self._bounds(partitions, OffsetSpec.latest())
        groups = reader.read([name for name in reader.states() if self._groups.fullmatch(name)])
        return KafkaReading(
            cluster_id=metadata.cluster_id or "",
            brokers={broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()},
            partitions=tuple(_with_offsets(part, starts, ends) for part in partitions),
            groups=tuple(group for group in groups if group.error is None),
        )

    def _is_wanted(self, topic: str) -> bool:
        return not topic.startswith(INTERNAL_PREFIX) and self._topics.fullmatch(topic) is not None

    def _bounds(self, partitions: Sequence[PartitionReading], spec: OffsetSpec) -> dict[PartitionId, int]:
        specs = {(part.topic, part.partition): spec for part in partitions if part.leader is not None}
        outcomes = {
            partition_id: self.client.outcome(future, partition_id[0])
            for partition_id, future in self.client.ask_offsets(specs).items()
        }
        refusals = [outcome for outcome in outcomes.values() if isinstance(outcome, LogbusError)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]
        return {
            partition_id: info.offset
            for partition_id, info in outcomes.items()
            if not isinstance(info, LogbusError) and info.offset >= 0
        }


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{text!r} is not a pattern of names: {error}") from None


def partitions_of(name: str, topic: Any) -> Iterable[PartitionReading]:
    for number, part in sorted(topic.partitions.items()):
        leader = None if part.leader == NO_LEADER else part.leader
        yield PartitionReading(topic=name, partition=number, leader=leader, replicas=len(part.replicas), in_sync=len(part.isrs))


def _with_offsets(part: PartitionReading, starts: Mapping[PartitionId, int], ends: Mapping[PartitionId, int]) -> PartitionReading:
    partition_id = (part.topic, part.partition)
    return replace(part, start_offset=starts.get(partition_id), end_offset=ends.get(partition_id))


# One note per scrape while records arrive: two hours at one scrape in 15 s, days after thinning; at most 40 KB per partition.
NOTES_MAX = 512


class Arrivals:
    """When the end offsets of all partitions were first seen. Times are seconds of any monotonic clock.

    When a partition has too many notes, the older half is thinned out, so old answers get coarser (and smaller: an age counts
    from the note that proves it), never wrong.
    """

    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._notes: dict[PartitionId, tuple[list[int], list[float]]] = {}

    def observe(self, ends: Mapping[PartitionId, int], now: float) -> None:
        """Notes the current end offsets. A partition no longer listed is forgotten; one whose end went back starts afresh."""
        self._notes = {partition_id: self._notes.get(partition_id, ([], [])) for partition_id in ends}
        for partition_id, end in ends.items():
            offsets, times = self._notes[partition_id]
            if offsets and end < offsets[-1]:
                offsets.clear()
                times.clear()
            if not offsets or end > offsets[-1]:
                offsets.append(end)
                times.append(now)
            if len(offsets) > self._notes_max:
                older = slice(1, len(offsets) // 2, 2)
                del offsets[older], times[older]

    def waiting_seconds(self, partition_id: PartitionId, offset: int, now: float) -> float | None:
        """How long the record at the offset has been in the log; 0 if there is none yet, None if it predates the first note."""
        offsets, times = self._notes.get(partition_id, ([], []))
        index = bisect_right(offsets, offset)
        if index == len(offsets):
            return 0.0 if offsets else None
        return None if index == 0 else now - times[index]
