"""Consumer groups as a broker keeps them: who is in one, and which offsets it has committed.

`Groups` is the question list; `GroupOffsets` asks a real broker, the tests' fake answers from memory; one contract
suite runs over both. A committed offset is the next one to read, so a window's end offset is committed as it is.
Nothing here joins a group: offsets are changed the way kafka-consumer-groups changes them, and a broker refuses that
while the group has members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from logbus.errors import GroupActive, GroupMissing
from logbus.kafka.admin import BrokerQuestions, Place, to_committed

INACTIVE_STATES = ("EMPTY", "DEAD")
NOT_FOUND = KafkaError.GROUP_ID_NOT_FOUND
ANY_CONSUMER = KafkaError.UNKNOWN_MEMBER_ID  # what a broker answers whom it expects among a group's members


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group as it is now. `members` are the client ids of its members; a group nobody knows is `DEAD`."""

    name: str
    state: str
    members: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in INACTIVE_STATES


class Groups(Protocol):
    """The questions, and the one order."""

    def group(self, name: str) -> GroupFacts: ...

    def committed(self, group: str) -> dict[Place, int]: ...

    def commit(self, group: str, offsets: Mapping[Place, int], note: str = "") -> None: ...


class GroupOffsets(BrokerQuestions):
    """The questions put to a real broker."""

    def group(self, name: str) -> GroupFacts:
        """State and members."""
        try:
            found = self.ask(lambda: self.ask_groups([name]), name, {NOT_FOUND: self._missing(name)})[name]
        except GroupMissing:
            return GroupFacts(name=name, state="DEAD")
        return GroupFacts(name=name, state=found.state.name, members=tuple(member.client_id for member in found.members))

    def committed(self, group: str) -> dict[Place, int]:
        """Every offset the group has committed; empty for a group nobody knows."""
        return to_committed(self.ask(lambda: self.ask_committed(group), group, check=raise_error)[group])

    def commit(self, group: str, offsets: Mapping[Place, int], note: str = "") -> None:
        """Sets the group's offsets, the group being made where it is not there. `GroupActive` while it has members."""
        if not offsets:
            return
        parts = [TopicPartition(topic, partition, offset, note) for (topic, partition), offset in sorted(offsets.items())]
        wanted = [ConsumerGroupTopicPartitions(group, parts)]
        refused = {ANY_CONSUMER: active(group, "")}
        self.ask(
            lambda: self.client().alter_consumer_group_offsets(wanted, **self.limits()), group, explain=refused, check=raise_error
        )

    def delete(self, name: str) -> None:
        """Deletes the group with its offsets; `GroupActive` while it has members."""
        refused = {
            NOT_FOUND: self._missing(name),
            KafkaError.NON_EMPTY_GROUP: GroupActive(f"group {name} has members: stop them first"),
        }
        self.ask(lambda: self.client().delete_consumer_groups([name], **self.limits()), name, refused)

    def _missing(self, name: str) -> GroupMissing:
        return GroupMissing(f"the broker at {self.address} has no group {name!r}")


def raise_error(answer: ConsumerGroupTopicPartitions) -> None:
    """The first error that an answer holds for a partition; the client raises only those of whole groups."""
    for part in answer.topic_partitions or []:
        if part.error is not None:
            raise KafkaException(part.error)


def active(group: str, members: str) -> GroupActive:
    """The refusal, as a sentence that says what to do."""
    who = f" ({members})" if members else ""
    return GroupActive(
        f"group {group} is active: it has members{who} that would go on from where they are and overwrite what is set. "
        "Stop them, wait for their session to end, and try again"
    )


def refuse_if_active(facts: GroupFacts) -> None:
    """`GroupActive` where the group has members or is about to get some."""
    if facts.is_active:
        raise active(facts.name, ", ".join(facts.members) or f"state {facts.state}")
