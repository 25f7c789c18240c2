"""Everything a scrape asks the broker: one Metadata request, two ListOffsets over all partitions, and the groups.

Nothing is asked once for each partition. Groups are listed and described together; their offsets take a request for each
group (as in Kafka's own tools), all under way at once. A partition that cannot be read now (no leader, a damaged log) is left
out of the answer and spoils no other. The admin client is used by one reading at a time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from logbus.errors import UserError
from logbus.windows.admin_requests import AdminRequests

Place = tuple[str, int]

INTERNAL_PREFIX = "__"  # the broker's own topics: fifty partitions that nobody looks at
NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReading:
    """A partition now. An offset that could not be read is None."""

    topic: str
    partition: int
    leader: int | None
    replicas: int
    in_sync: int
    start_offset: int | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A group's member; `consumer_id` is the one that the coordinator gave it."""

    consumer_id: str = ""
    client_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group now: committed offsets, and who has which partition."""

    name: str
    member_count: int
    offsets: Mapping[Place, int]
    owners: Mapping[Place, Member] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReading:
    """The cluster at one moment. `waiting` is how long each group's next record has been there, where that is known."""

    cluster_id: str
    brokers: Mapping[int, str]
    partitions: tuple[PartitionReading, ...]
    groups: tuple[GroupReading, ...]
    waiting: Mapping[tuple[str, Place], float] = field(default_factory=dict)

    @property
    def ends(self) -> dict[Place, int]:
        return {(one.topic, one.partition): one.end_offset for one in self.partitions if one.end_offset is not None}


class KafkaQuestions(AdminRequests):
    """The questions put to a real broker. `topics` and `groups` are patterns that names must match in full."""

    def __init__(
        self, client_config: Mapping[str, Any], *, timeout_seconds: float, topics: str = ".*", groups: str = ".*"
    ) -> None:
        super().__init__(client_config, timeout_seconds=timeout_seconds)
        self._topics, self._groups = pattern(topics), pattern(groups)

    def read(self) -> KafkaReading:
        """All of it; `BrokerUnavailable` where the broker does not answer."""
        try:
            metadata = self.client().list_topics(timeout=self.timeout_seconds)
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        found = [part for name, topic in metadata.topics.items() if self._is_wanted(name) for part in partitions_of(name, topic)]
        starts, ends = self._offsets(found, OffsetSpec.earliest()), self._offsets(found, OffsetSpec.latest())
        return KafkaReading(
            cluster_id=metadata.cluster_id or "",
            brokers={broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()},
            partitions=tuple(with_offsets(part, starts, ends) for part in found),
            groups=tuple(self._read_groups()),
        )

    def _is_wanted(self, topic: str) -> bool:
        return not topic.startswith(INTERNAL_PREFIX) and self._topics.fullmatch(topic) is not None

    def _offsets(self, partitions: Iterable[PartitionReading], spec: OffsetSpec) -> dict[Place, int]:
        wanted = {TopicPartition(one.topic, one.partition): spec for one in partitions if one.leader is not None}
        answers = self._gather(self.client().list_offsets(wanted, **self.limits())) if wanted else {}
        return {(part.topic, part.partition): info.offset for part, info in answers.items() if info.offset >= 0}

    def _read_groups(self) -> Iterable[GroupReading]:
        answer = self.ask(lambda: {"": self.client().list_consumer_groups(**self.limits())}, "")[""]
        names = sorted(one.group_id for one in answer.valid if self._groups.fullmatch(one.group_id))
        if not names:
            return []
        described = self._gather(self.client().describe_consumer_groups(names, **self.limits()))
        asked: dict[str, Future[Any]] = {}
        for name in names:
            asked |= self.client().list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], **self.limits())
        committed = self._gather(asked)
        return [to_group(name, described[name], committed[name]) for name in names if name in described and name in committed]

    def _gather(self, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """The answers that came; `BrokerUnavailable` where none did."""
        deadline = time.monotonic() + self.timeout_seconds
        answers, reason = {}, ""
        for key, future in futures.items():
            try:
                answers[key] = future.result(max(0.0, deadline - time.monotonic()))
            except KafkaException as error:
                reason = error.args[0].str()
            except TimeoutError:
                reason = f"no answer within {self.timeout_seconds:g} s"
        if futures and not answers:
            raise self.unavailable(reason)
        return answers


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{text!r} is no pattern of names: {error}") from None


def partitions_of(name: str, topic: Any) -> Iterable[PartitionReading]:
    for number, part in sorted(topic.partitions.items()):
        leader = None if part.leader == NO_LEADER else part.leader
        yield PartitionReading(topic=name, partition=number, leader=leader, replicas=len(part.replicas), in_sync=len(part.isrs))


def with_offsets(part: PartitionReading, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> PartitionReading:
    place = (part.topic, part.partition)
    return replace(part, start_offset=starts.get(place), end_offset=ends.get(place))


def to_group(name: str, described: Any, committed: Any) -> GroupReading:
    owners = {
        (place.topic, place.partition): Member(consumer_id=one.member_id, client_id=one.client_id, host=one.host)
        for one in described.members
        if one.assignment is not None
        for place in one.assignment.topic_partitions
    }
    parts = committed.topic_partitions or []
    offsets = {(part.topic, part.partition): part.offset for part in parts if part.error is None and part.offset >= 0}
    return GroupReading(name=name, member_count=len(described.members), offsets=offsets, owners=owners)
