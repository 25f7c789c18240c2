"""Consumer groups as they are now: state, members, what each reads, how far it is behind. For pages, command line and exporter.

One request for the list, one for what the groups are, one a group for its offsets (the client takes no more at once), all under
way together; end offsets of all topics in one. Lag is what kafka-consumer-groups calls so: end offset less committed offset.
Where a group has committed nothing in a partition, nobody knows where it would begin, so lag is None and never 0; and so it is
where the partition is gone or has no leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from logbus.errors import BrokerUnavailable, GroupMissing, LogbusError
from logbus.kafka.admin import LATEST, Place, to_committed
from logbus.kafka.batches import Kind, LogBatches, Question, TopicBatches, TopicPlaces
from logbus.kafka.topic_list import led_partitions

# The names that Kafka's own tools print; the client has some of its own.
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "EMPTY": "Empty",
    "DEAD": "Dead",
}
DEAD = STATES["DEAD"]  # what a broker calls a group that it does not know
UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer in a group, and the partitions it holds. The host is as the broker says it: Java's have a slash in front."""

    member_id: str
    client_id: str
    host: str
    assignments: tuple[Place, ...] = ()

    @property
    def address(self) -> str:
        return self.host.removeprefix("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group as it is now. `committed` holds the next offset to read of each partition it has committed.

    The coordinator is a broker, as `host:port (id)`. `error` says what the broker did not tell.
    """

    name: str
    state: str
    protocol: str = ""
    coordinator: str = ""
    members: tuple[Member, ...] = ()
    committed: Mapping[Place, int] = field(default_factory=dict)
    error: LogbusError | None = None

    @property
    def places(self) -> list[Place]:
        """What it has committed or is reading."""
        return sorted({*self.committed, *self.readers})

    @property
    def readers(self) -> dict[Place, Member]:
        """Who reads each partition that is read."""
        return {place: member for member in self.members for place in member.assignments}


class GroupBatches(TopicBatches):
    """The questions put to a real broker."""

    def group_states(self) -> dict[str, str]:
        """The state of every group, by name. `BrokerUnavailable` where the broker does not answer."""
        try:
            listed = self.ask_group_names().result(self.timeout_seconds + 1)
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        except TimeoutError:
            raise self.unavailable(f"no answer within {self.timeout_seconds:g} s") from None
        if listed.errors and not listed.valid:
            raise self.unavailable(listed.errors[0].str())
        return {one.group_id: state_name(one.state) for one in sorted(listed.valid, key=lambda one: str(one.group_id))}

    def groups(self, names: Sequence[str] | None = None) -> list[GroupReading]:
        """These, in this order, or all by name."""
        wanted = list(self.group_states()) if names is None else names
        if not wanted:
            return []
        described = self.ask_groups(wanted)
        offsets = {name: self.ask_committed(name)[name] for name in wanted}
        return [
            to_group(
                name,
                self.outcome(described[name], name, {KafkaError.GROUP_ID_NOT_FOUND: missing(name)}),
                self.outcome(offsets[name], name),
            )
            for name in wanted
        ]


def missing(name: str) -> GroupMissing:
    return GroupMissing(f"the broker has no group {name!r}: `logbus group ls` lists those it has")


def to_group(name: str, described: Any, offsets: Any) -> GroupReading:
    """A group out of the client's answers, either of which may be an error. The state of one that is not there is Dead."""
    error = next((one for one in (described, offsets) if isinstance(one, LogbusError)), None) or refusal(name, offsets)
    committed = {} if isinstance(offsets, LogbusError) else to_committed(offsets)
    if isinstance(described, LogbusError):
        state = DEAD if isinstance(described, GroupMissing) else UNKNOWN
        return GroupReading(name=name, state=state, committed=committed, error=error)
    node, state = described.coordinator, state_name(described.state)
    return GroupReading(
        name=name,
        state=state,
        protocol=described.partition_assignor or "",
        coordinator="" if node is None else f"{node.host}:{node.port} ({node.id})",
        members=tuple(to_member(one) for one in sorted(described.members, key=lambda one: str(one.member_id))),
        committed=committed,
        error=missing(name) if state == DEAD else error,
    )


def refusal(name: str, offsets: Any) -> LogbusError | None:
    """Why an answer lacks the offset of a partition; None where all are there."""
    for part in () if isinstance(offsets, LogbusError) else offsets.topic_partitions or ():
        if part.error is not None:
            return BrokerUnavailable(f"the broker does not tell all offsets of {name!r}: {part.error.str()}")
    return None


def state_name(state: Any) -> str:
    return STATES.get(state.name, state.name.title())


def to_member(described: Any) -> Member:
    parts = described.assignment.topic_partitions if described.assignment else ()
    return Member(
        member_id=described.member_id,
        client_id=described.client_id,
        host=described.host,
        assignments=tuple(sorted((part.topic, part.partition) for part in parts)),
    )


def end_offsets_of(log: LogBatches, groups: Sequence[GroupReading]) -> dict[Place, int]:
    """Of every partition that one of the groups reads or has read; those that are gone or have no leader are left out."""
    read = {place for group in groups for place in group.places}
    described = log.topics({topic for topic, _ in read})
    led = {name: led_partitions(one) for name, one in described.items() if isinstance(one, TopicPlaces)}
    wanted = {name: [part for part in parts if (name, part) in read] for name, parts in led.items()}
    known = log.answers([Question(Kind.END, name, LATEST) for name in wanted], wanted)
    return {
        (question.topic, part): end
        for question, ends in known.items()
        if not isinstance(ends, LogbusError)
        for part, end in ends.items()
    }


def group_json(group: GroupReading, ends: Mapping[Place, int]) -> dict[str, Any]:
    """As JSON-ready values."""
    readers = {place: member.member_id for place, member in group.readers.items()}
    lags = {place: lag_at(group, place, ends) for place in group.places}
    return {
        "group_id": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "problem": None if group.error is None else str(group.error),
        "lag": total(lags[place] for place in group.places),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.address,
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


def total(lags: Iterable[int | None]) -> int | None:
    """Of those that are known; None where none is."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None
