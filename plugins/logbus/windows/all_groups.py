"""Every consumer group of a broker as a page shows them: members, what each reads, how far it is behind.

One request for the list, one for what the groups are, one a group for its offsets (the client takes no more at once), all under
way together; end offsets of all topics in one. Lag is what kafka-consumer-groups calls so: end offset less committed offset.
Where a group has committed nothing in a partition, nobody knows where it would begin, so lag is None and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

from logbus.errors import LogbusError
from logbus.windows.all_topics import LATEST
from logbus.windows.group_offsets import Place
from logbus.windows.log_batches import Kind, LogBatches, Question, TopicBatches, TopicPlaces

# The names that Kafka's own tools print; the client has some of its own.
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "EMPTY": "Empty",
    "DEAD": "Dead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    client_id: str
    host: str
    assignments: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group as it is now. `committed` holds the next offset to read of each partition it has committed."""

    name: str
    state: str
    protocol: str = ""
    members: tuple[Member, ...] = ()
    committed: Mapping[Place, int] = field(default_factory=dict)
    problem: str | None = None

    @property
    def places(self) -> list[Place]:
        """What it has committed or is reading."""
        return sorted({*self.committed, *(place for member in self.members for place in member.assignments)})


class AllGroups(Protocol):
    """The questions."""

    def groups(self) -> list[GroupReading]: ...


class GroupBatches(TopicBatches):
    """The questions put to a real broker."""

    def groups(self) -> list[GroupReading]:
        """By name. `BrokerUnavailable` where the broker does not answer."""
        try:
            listed = self.client().list_consumer_groups(**self.limits()).result(self.timeout_seconds + 1)
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        except TimeoutError:
            raise self.unavailable(f"no answer within {self.timeout_seconds:g} s") from None
        if listed.errors and not listed.valid:
            raise self.unavailable(listed.errors[0].str())
        names = sorted(one.group_id for one in listed.valid)
        if not names:
            return []
        described = self.client().describe_consumer_groups(names, **self.limits())
        offsets = {name: self._offsets(name) for name in names}
        return [to_group(name, self.outcome(described[name], name), self.outcome(offsets[name], name)) for name in names]

    def _offsets(self, group: str) -> Future[Any]:
        wanted = [ConsumerGroupTopicPartitions(group)]
        return self.client().list_consumer_group_offsets(wanted, require_stable=False, **self.limits())[group]


def to_group(name: str, described: Any, offsets: Any) -> GroupReading:
    """A group out of the client's answers, either of which may be an error."""
    problem = next((str(one) for one in (described, offsets) if isinstance(one, LogbusError)), None)
    parts = () if isinstance(offsets, LogbusError) else offsets.topic_partitions or ()
    committed = {(part.topic, part.partition): part.offset for part in parts if part.offset >= 0 and part.error is None}
    if isinstance(described, LogbusError):
        return GroupReading(name=name, state="Unknown", committed=committed, problem=problem)
    return GroupReading(
        name=name,
        state=STATES.get(described.state.name, described.state.name.title()),
        protocol=described.partition_assignor or "",
        members=tuple(to_member(one) for one in described.members),
        committed=committed,
        problem=problem,
    )


def to_member(described: Any) -> Member:
    parts = described.assignment.topic_partitions if described.assignment else ()
    return Member(
        member_id=described.member_id,
        client_id=described.client_id,
        host=described.host.removeprefix("/"),
        assignments=tuple(sorted((part.topic, part.partition) for part in parts)),
    )


def end_offsets_of(log: LogBatches, groups: Sequence[GroupReading]) -> dict[Place, int]:
    """Of every topic that one of the groups reads or has read; those that are gone are left out."""
    described = log.topics({topic for group in groups for topic, _ in group.places})
    partitions = {name: one.facts.partitions for name, one in described.items() if isinstance(one, TopicPlaces)}
    known = log.answers([Question(Kind.END, name, LATEST) for name in partitions], partitions)
    return {
        (question.topic, part): end
        for question, ends in known.items()
        if not isinstance(ends, LogbusError)
        for part, end in ends.items()
    }


def group_json(group: GroupReading, ends: Mapping[Place, int]) -> dict[str, Any]:
    """As JSON-ready values."""
    readers = {place: member.member_id for member in group.members for place in member.assignments}
    lags = {place: lag_at(group, place, ends) for place in group.places}
    return {
        "group_id": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "problem": group.problem,
        "lag": total(lags[place] for place in group.places),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignments": [{"topic": topic, "partition": part} for topic, part in member.assignments],
                "lag": total(lags[place] for place in member.assignments),
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": place[0],
                "partition": place[1],
                "committed_offset": group.committed.get(place),
                "end_offset": ends.get(place),
                "lag": lags[place],
                "member_id": readers.get(place),
            }
            for place in group.places
        ],
    }


def lag_at(group: GroupReading, place: Place, ends: Mapping[Place, int]) -> int | None:
    """Records between what is committed and the end; None where one of the two is not known."""
    committed, end = group.committed.get(place), ends.get(place)
    return None if committed is None or end is None else max(0, end - committed)


def total(lags: Any) -> int | None:
    """Of those that are known; None where none is."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None
