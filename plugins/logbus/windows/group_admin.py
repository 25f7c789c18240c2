"""Consumer groups as people look at them: which there are, who is in them, how far behind they are; and the order to delete one.

A group's lag is what `kafka-consumer-groups --describe` calls so: the end of the partition less the committed offset. A
partition that a member holds and the group has committed nothing for has no lag, because nobody knows where it will begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from logbus.errors import GroupActive, GroupMissing
from logbus.windows.group_offsets import GroupOffsets, Place

DEAD = "DEAD"  # what a broker calls a group that it does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer in a group, and the partitions it holds."""

    member_id: str
    client_id: str
    host: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A group and its members. The coordinator is a broker, as `host:port (id)`."""

    name: str
    state: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """How far a group is in one partition, and which member reads it. What is not known is None."""

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)


class GroupAdmin(GroupOffsets):
    """Questions and orders about groups, beside those about their offsets."""

    def states(self) -> dict[str, str]:
        """The state of every group, by name."""
        answers = self.ask(lambda: {"groups": self.client().list_consumer_groups(**self.limits())}, "")
        for error in answers["groups"].errors:
            raise self.unavailable(str(error))
        return {
            found.group_id: state_name(found.state) for found in sorted(answers["groups"].valid, key=lambda one: one.group_id)
        }

    def details(self, names: Sequence[str]) -> list[GroupDetails]:
        """In the order of the names; `GroupMissing` where one of them is not there."""
        return [self.one_detail(name) for name in names]

    def one_detail(self, name: str) -> GroupDetails:
        missing = GroupMissing(f"the broker at {self.address} has no group {name!r}: `logbus group ls` lists those it has")
        answers = self.ask(
            lambda: self.client().describe_consumer_groups([name], **self.limits()),
            name,
            {KafkaError.GROUP_ID_NOT_FOUND: missing},
        )
        found = group_details(answers[name])
        if found.state == DEAD:
            raise missing
        return found

    def positions(self, group: GroupDetails) -> list[GroupPosition]:
        """Every partition that the group has committed an offset for or that a member holds, in order."""
        committed = self.committed(group.name)
        holders = {place: member for member in group.members for place in member.places}
        places = sorted({*committed, *holders})
        ends = self.ends(places)
        return [
            GroupPosition(
                group=group.name,
                topic=topic,
                partition=partition,
                committed_offset=committed.get((topic, partition)),
                end_offset=ends.get((topic, partition)),
                member=holders.get((topic, partition)),
            )
            for topic, partition in places
        ]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Where these partitions end, all in one question; those that are gone are left out."""
        there = self.there()
        wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places if place in there}
        if not wanted:
            return {}
        answers = self.ask(lambda: self.client().list_offsets(wanted, **self.limits()), ", ".join(part.topic for part in wanted))
        return {(part.topic, part.partition): info.offset for part, info in answers.items()}

    def there(self) -> set[Place]:
        """Every partition that the cluster has."""
        try:
            topics: Mapping[str, Any] = self.client().list_topics(timeout=self.timeout_seconds).topics
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        return {(name, partition) for name, topic in topics.items() for partition in topic.partitions}

    def delete(self, name: str) -> None:
        """Deletes the group with its offsets; `GroupActive` while it has members."""
        refused = {
            KafkaError.GROUP_ID_NOT_FOUND: GroupMissing(f"the broker at {self.address} has no group {name!r}"),
            KafkaError.NON_EMPTY_GROUP: GroupActive(f"group {name} has members: stop them first"),
        }
        self.ask(lambda: self.client().delete_consumer_groups([name], **self.limits()), name, refused)


def group_details(found: Any) -> GroupDetails:
    node = found.coordinator
    return GroupDetails(
        name=found.group_id,
        state=state_name(found.state),
        assignor=found.partition_assignor or "",
        coordinator="" if node is None else f"{node.host}:{node.port} ({node.id})",
        members=tuple(member(one) for one in sorted(found.members, key=lambda one: str(one.member_id))),
    )


def member(found: Any) -> Member:
    held = found.assignment.topic_partitions if found.assignment else []
    places = tuple(sorted((part.topic, part.partition) for part in held))
    return Member(member_id=found.member_id, client_id=found.client_id, host=found.host, places=places)


def state_name(state: Any) -> str:
    return str(getattr(state, "name", state))
