"""Consumer groups as a broker stores them: members, committed offsets and lag; and the orders that change or delete them.

`GroupOffsets` lists what seeking and checkpoints ask; `Groups` asks a real broker, the tests' fake answers from memory;
one contract suite runs over both. A committed offset is the next one to read, so a window's end offset is committed as it is.
Nothing here joins a group: offsets are changed the way kafka-consumer-groups changes them, and a broker refuses that while the
group has members.

`Groups.read` is for pages, command line and exporter: one request for the list, one for the groups' descriptions, one per group
for its offsets, all in flight together; one for the end offsets of all topics. Lag is as in kafka-consumer-groups: end offset
less committed offset. It is None and never 0 where a group has committed nothing in a partition, because where it would begin is
not known, and where the partition is gone or has no leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from logbus.errors import BrokerUnavailable, GroupActive, GroupMissing, LogbusError
from logbus.kafka import errors, topic_list
from logbus.kafka.client import LATEST, Client, PartitionId

# The names that Kafka's tools print, where the client spells them differently.
STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
DEAD = "Dead"  # the state a broker returns for a group that does not exist
INACTIVE_STATES = ("Empty", DEAD)
UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One consumer in a group and its assigned partitions. The host is as the broker returns it: Java brokers prefix a slash."""

    member_id: str
    client_id: str
    host: str
    assignments: tuple[PartitionId, ...] = ()

    @property
    def address(self) -> str:
        return self.host.removeprefix("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group as it is now. `committed` has the next offset to read in each partition for which it has committed one.

    The coordinator is a broker, as `host:port (id)`. `error` is why part of the reading is missing.
    """

    name: str
    state: str
    protocol: str = ""
    coordinator: str = ""
    members: tuple[GroupMember, ...] = ()
    committed: Mapping[PartitionId, int] = field(default_factory=dict)
    error: LogbusError | None = None

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that it has committed an offset in or that are assigned to a member."""
        return sorted({*self.committed, *self.readers})

    @property
    def readers(self) -> dict[PartitionId, GroupMember]:
        """The member that each assigned partition is assigned to."""
        return {partition_id: member for member in self.members for partition_id in member.assignments}


class GroupOffsets(Protocol):
    """The questions, and the one order."""

    def validate_inactive(self, name: str) -> None: ...

    def committed(self, group: str) -> dict[PartitionId, int]: ...

    def commit(self, group: str, offsets: Mapping[PartitionId, int], note: str = "") -> None: ...


class Groups:
    """The groups of a real broker, one or many at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def validate_inactive(self, name: str) -> None:
        """`GroupActive` where the group has members or is about to get some; a group that does not exist has none."""
        try:
            described = self.client.ask(lambda: self.client.ask_groups([name]), name)[name]
        except GroupMissing:
            return
        state, members = _state_name(described.state), ", ".join(member.client_id for member in described.members)
        if members or state not in INACTIVE_STATES:
            raise active(name, members or f"state {state}")

    def committed(self, group: str) -> dict[PartitionId, int]:
        """Every offset the group has committed; empty for a group that does not exist."""
        return _to_committed(self.client.ask(lambda: self.client.ask_committed(group), group, check=_raise_error)[group])

    def commit(self, group: str, offsets: Mapping[PartitionId, int], note: str = "") -> None:
        """Sets the group's offsets, creating the group if it does not exist. `GroupActive` while it has members."""
        if not offsets:
            return
        parts = [TopicPartition(topic, partition, offset, note) for (topic, partition), offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(group, parts)]
        self.client.ask(
            lambda: self.client.admin().alter_consumer_group_offsets(request, **self.client.limits()),
            group,
            needs="Read",
            # Kafka has two error codes for a group with members, depending on its version and on whether the group is stable.
            # Both mean the same to the user.
            explained={KafkaError.UNKNOWN_MEMBER_ID: active(group, "")},  # from a broker that accepts commits of members only
            check=_raise_error,
        )

    def delete(self, name: str) -> None:
        """Deletes the group with its offsets; `GroupActive` while it has members."""
        self.client.ask(lambda: self.client.admin().delete_consumer_groups([name], **self.client.limits()), name, needs="Delete")

    def states(self) -> dict[str, str]:
        """The state of every group, by name. `BrokerUnavailable` where the broker does not answer."""
        listed = self.client.ask(lambda: {"": self.client.ask_group_names()})[""]
        if listed.errors and not listed.valid:
            # Some brokers of a cluster may be down: the groups they coordinate are missing from the list, the others are
            # shown. It is an error only if there are none at all.
            raise self.client.explain(listed.errors[0], "")
        return {group.group_id: _state_name(group.state) for group in sorted(listed.valid, key=lambda group: str(group.group_id))}

    def read(self, names: Sequence[str] | None = None) -> list[GroupReading]:
        """The named groups in this order, or all of them sorted by name."""
        names = list(self.states()) if names is None else names
        if not names:
            return []
        # Both kinds of requests are sent before the first answer is read: a hundred groups cost about two round trips.
        described = self.client.ask_groups(names)
        offsets = {name: self.client.ask_committed(name)[name] for name in names}
        return [
            to_group(name, self.client.outcome(described[name], name), self.client.outcome(offsets[name], name)) for name in names
        ]


def _raise_error(answer: ConsumerGroupTopicPartitions) -> None:
    """Raises the first partition's error in an answer; the client raises only those of whole groups."""
    for part in answer.topic_partitions or []:
        if part.error is not None:
            raise KafkaException(part.error)


def active(group: str, members: str) -> GroupActive:
    """The refusal, with a message that says what to do."""
    who = f" ({members})" if members else ""
    return GroupActive(
        f"group {group} is active: it has members{who} that would continue from their own position and overwrite the offsets. "
        "Stop them, wait for their session to end, and try again"
    )


def _to_committed(answer: ConsumerGroupTopicPartitions) -> dict[PartitionId, int]:
    """The offsets in an answer: those of partitions for which the group has committed one."""
    parts = answer.topic_partitions or []
    return {(part.topic, part.partition): part.offset for part in parts if part.offset >= 0 and part.error is None}


def to_group(name: str, described: Any, offsets: Any) -> GroupReading:
    """A group from the client's answers, either of which may be an error. One that does not exist is in state Dead."""
    error = next((answer for answer in (described, offsets) if isinstance(answer, LogbusError)), None) or _missing_offsets_error(
        name, offsets
    )
    committed = {} if isinstance(offsets, LogbusError) else _to_committed(offsets)
    # One half can be missing: no right to describe the group, or a coordinator that is just moving. The half that is known is
    # shown, with the error of the other.
    if isinstance(described, LogbusError):
        state = DEAD if isinstance(described, GroupMissing) else UNKNOWN
        return GroupReading(name=name, state=state, committed=committed, error=error)
    node, state = described.coordinator, _state_name(described.state)
    return GroupReading(
        name=name,
        state=state,
        protocol=described.partition_assignor or "",
        coordinator="" if node is None else f"{node.host}:{node.port} ({node.id})",
        members=tuple(_to_member(member) for member in sorted(described.members, key=lambda member: str(member.member_id))),
        committed=committed,
        error=errors.explain_code(KafkaError.GROUP_ID_NOT_FOUND, "", name) if state == DEAD else error,
    )


def _missing_offsets_error(name: str, offsets: Any) -> LogbusError | None:
    """Why an answer lacks the offset of a partition; None where all are there."""
    for part in () if isinstance(offsets, LogbusError) else offsets.topic_partitions or ():
        if part.error is not None:
            return BrokerUnavailable(
                f"the broker did not return all offsets of {name!r}: {errors.explain(part.error, part.topic)}"
            )
    return None


def _state_name(state: Any) -> str:
    """The client's name of a state as Kafka's tools print it."""
    return STATES.get(state.name, state.name.title())


def _to_member(described: Any) -> GroupMember:
    parts = described.assignment.topic_partitions if described.assignment else ()
    return GroupMember(
        member_id=described.member_id,
        client_id=described.client_id,
        host=described.host,
        assignments=tuple(sorted((part.topic, part.partition) for part in parts)),
    )


def end_offsets_of(log: topic_list.LogBatches, groups: Sequence[GroupReading]) -> dict[PartitionId, int]:
    """The end offset of every partition that one of the groups reads or has read; those gone or without a leader are left out."""
    read = {partition_id for group in groups for partition_id in group.partitions}
    # Asking about a partition without a leader would hold the page up for the client's whole time limit.
    led = topic_list.led_partitions(log.topics({topic for topic, _ in read}))
    partitions = {name: [part for part in parts if (name, part) in read] for name, parts in led.items()}
    answers = log.answers([topic_list.Question(topic_list.Kind.END, name, LATEST) for name in partitions], partitions)
    return {
        (question.topic, part): end
        for question, ends in answers.items()
        if not isinstance(ends, LogbusError)
        for part, end in ends.items()
    }


def group_json(group: GroupReading, ends: Mapping[PartitionId, int]) -> dict[str, Any]:
    """As JSON-ready values."""
    readers = {partition_id: member.member_id for partition_id, member in group.readers.items()}
    lags = {partition_id: lag_at(group, partition_id, ends) for partition_id in group.partitions}
    return {
        "group_id": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "problem": None if group.error is None else str(group.error),
        "lag": _total(lags.values()),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.address,
                "assignments": [{"topic": topic, "partition": part} for topic, part in member.assignments],
                "lag": _total(lags[partition_id] for partition_id in member.assignments),
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "committed_offset": group.committed.get((topic, partition)),
                "end_offset": ends.get((topic, partition)),
                "lag": lag,
                "member_id": readers.get((topic, partition)),
            }
            for (topic, partition), lag in lags.items()
        ],
    }


def lag_at(group: GroupReading, partition_id: PartitionId, ends: Mapping[PartitionId, int]) -> int | None:
    """Records between what is committed and the end; None where one of the two is unknown."""
    committed, end = group.committed.get(partition_id), ends.get(partition_id)
    return None if committed is None or end is None else max(0, end - committed)


def _total(lags: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None if none is."""
    reported = [lag for lag in lags if lag is not None]
    return sum(reported) if reported else None
