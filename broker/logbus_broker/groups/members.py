"""The members of one group: by id, by instance id, and the ids handed out to members that have yet to join with them; and the
inputs and outputs of the group state machine: values, independent of protocol versions.

A ticket represents a waiting request; the state machine only ever hands it back with the answer. Metadata and assignments are
bytes that members write for each other: the broker passes them on unread, which is why any assignor works.

Members are kept in the order in which they joined; the first is the leader until it leaves. A protocol can be chosen only if
every member supports it; among those each member votes for the one it prefers (the first in its list).

What every request asks of the group as a whole (how much memory, who has joined, which protocols all support, when somebody's
session ends) is counted as members change, and never by visiting them all: when a group of a thousand rebalances, a thousand
requests arrive together. Hence only `Members` changes a member that it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from logbus_broker.errors import FencedInstanceId, ProtocolError, RequestError, UnknownMember
from logbus_broker.protocol.framing import read_string

Ticket = Any
Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the preferred one first


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberName:
    """How a request names a member: by id, and by instance id if it is static (KIP-345)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    name: MemberName
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    id_comes_first: bool  # JoinGroup 4 and later: a new member gets its id first, and joins with it (KIP-394)
    may_skip_assignment: bool  # JoinGroup 9 and later: a returning static leader may keep the assignment (KIP-814)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One row of the member list that the leader receives."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    member_id: str
    generation: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    members: tuple[JoinedMember, ...] = ()  # for the leader only
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    name: MemberName
    generation: int
    protocol_type: str | None  # None if the version does not have it
    protocol_name: str | None
    assignments: Mapping[str, bytes]  # the leader's: member id to assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    protocol_type: str
    protocol_name: str
    assignment: bytes


class Answer(NamedTuple):
    """The answer to a waiting request."""

    ticket: Ticket
    outcome: JoinAnswer | SyncAnswer | RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as the log has it: of its protocols, only the chosen one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A generation as the log has it: stable if it has members, otherwise empty."""

    protocol_type: str
    generation: int
    protocol_name: str
    leader_id: str | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as administrators see it."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()


# The members of one group: by id, by instance id, and the ids handed out to members that have yet to join with them.


_MEMBER_BYTES = 2_000  # memory of a member without metadata, ids included
EXPECTED_BYTES = 500  # memory of an id that was handed out


def size_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Member:
    """One member; `joining` and `syncing` hold the ticket of a waiting request."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "has_synced",
        "instance_id",
        "joining",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "syncing",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        self.member_id = member_id
        self.instance_id = request.name.instance_id
        self.assignment = b""
        self.joining: Ticket | None = None
        self.syncing: Ticket | None = None
        self.has_synced = False  # in this generation
        self.deadline = 0.0  # of the session, on the monotonic clock
        self.update(request)

    def update(self, request: JoinRequest) -> None:
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols: Protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    @property
    def held_bytes(self) -> int:
        """Approximate memory used by the member."""
        return _MEMBER_BYTES + len(self.assignment) + size_of(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        """A member that waits for our answer cannot send heartbeats, and is not expected to."""
        return self.joining is not None or self.syncing is not None

    def touch(self, now: float) -> None:
        """The member is alive: its session timeout starts again."""
        self.deadline = now + self.session_timeout_ms / 1000

    def stored(self, protocol_name: str) -> StoredMember:
        """What the log gets of the member."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            metadata=self.metadata(protocol_name),
            assignment=self.assignment,
        )

    @classmethod
    def restored(cls, stored: StoredMember, protocol_type: str, protocol_name: str) -> Member:
        """The member that the log has, as if it had joined with the chosen protocol alone."""
        request = JoinRequest(
            name=MemberName(member_id=stored.member_id, instance_id=stored.instance_id),
            client_id=stored.client_id,
            client_host=stored.client_host,
            protocol_type=protocol_type,
            protocols=((protocol_name, stored.metadata),),
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            id_comes_first=False,
            may_skip_assignment=False,
        )
        member = cls(stored.member_id, request)
        member.assignment, member.has_synced = stored.assignment, True
        return member

    def metadata(self, protocol_name: str) -> bytes:
        return dict(self.protocols).get(protocol_name, b"")

    @property
    def protocol_names(self) -> list[str]:
        """The one it prefers comes first."""
        return [name for name, _ in self.protocols]

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


class Members:
    """All members of a group."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        self.expected: dict[str, float] = {}  # ids handed out, each with the time until which it may be used
        self.leader_id: str | None = None
        self._member_bytes = 0
        self._joined = 0  # how many members wait for the answer to a join
        self._synced = 0  # how many have sent a sync in this generation
        self._supporters: Counter[str] = Counter()  # how many support each protocol
        self._deadline = inf  # no session ends before, and no id that was handed out expires; heartbeats do not move it

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def find(self, name: MemberName) -> Member:
        """The member of that name. Raises UnknownMember, or FencedInstanceId if another process has taken the instance id."""
        if name.instance_id is None:
            member = self._by_id.get(name.member_id)
        else:
            member = self._by_instance.get(name.instance_id)
            if member is not None and member.member_id != name.member_id:
                raise FencedInstanceId(f"instance {name.instance_id!r} is now member {member.member_id!r}")
        if member is None:
            raise UnknownMember(f"no member {name.member_id!r}")
        return member

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def find_instance(self, instance_id: str) -> Member | None:
        return self._by_instance.get(instance_id)

    def expect(self, member_id: str, until: float) -> None:
        """The id was handed out, and may be used until then."""
        self.expected[member_id] = until
        self._deadline = min(self._deadline, until)

    def add(self, member: Member) -> None:
        self.expected.pop(member.member_id, None)
        self._by_id[member.member_id] = member
        self._count(member, 1)
        self._deadline = min(self._deadline, member.deadline)
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        self._count(member, -1)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member returned as another process: same membership, same role, new id."""
        del self._by_id[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._by_id[member_id] = member

    def _count(self, member: Member, sign: int) -> None:
        self._member_bytes += sign * member.held_bytes
        self._joined += sign * (member.joining is not None)
        self._synced += sign * member.has_synced
        supporters = self._supporters
        for name in set(member.protocol_names):
            supporters[name] += sign
            if not supporters[name]:
                del supporters[name]

    # -- changes of one member ---------------------------------------------------------------------------------------------------

    def update(self, member: Member, request: JoinRequest) -> None:
        """The member has joined again, perhaps with other protocols."""
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)

    def touch(self, member: Member, now: float) -> None:
        """The member is alive."""
        member.touch(now)
        self._deadline = min(self._deadline, member.deadline)

    def wait_to_join(self, member: Member, ticket: Ticket) -> None:
        self._joined += member.joining is None
        member.joining = ticket

    def take_joining(self, member: Member) -> Ticket | None:
        """The ticket of its waiting join, if any; it no longer waits, so its session counts again."""
        ticket, member.joining = member.joining, None
        if ticket is not None:
            self._joined -= 1
            self._deadline = min(self._deadline, member.deadline)
        return ticket

    def wait_to_sync(self, member: Member, ticket: Ticket) -> None:
        self._synced += not member.has_synced
        member.syncing, member.has_synced = ticket, True

    def take_syncing(self, member: Member) -> Ticket | None:
        """The ticket of its waiting sync, if any."""
        ticket, member.syncing = member.syncing, None
        if ticket is not None:
            self._deadline = min(self._deadline, member.deadline)
        return ticket

    def assign(self, member: Member, assignment: bytes) -> None:
        self._member_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def forget_syncs(self) -> None:
        """A rebalance begins: nobody has synced in the generation to come."""
        for member in self:
            member.has_synced = False
        self._synced = 0

    # -- the group as a whole ----------------------------------------------------------------------------------------------------

    def elect_leader(self) -> bool:
        """Make sure that the leader is a member that has joined; False if none has."""
        if self.leader_id is not None and self._by_id[self.leader_id].joining is not None:
            return True
        joined = next((member for member in self if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    @property
    def held_bytes(self) -> int:
        """Approximate memory used by all of them."""
        return len(self.expected) * EXPECTED_BYTES + self._member_bytes

    @property
    def deadline(self) -> float:
        """No session ends earlier, and no id that was handed out expires; it may be later than this. inf: nothing to watch."""
        return self._deadline if self._by_id or self.expected else inf

    def find_deadline(self) -> None:
        """Visit everybody for the exact deadline: when the one known so far has passed, which heartbeats have moved since."""
        sessions = [member.deadline for member in self if not member.is_waiting]
        self._deadline = min((*sessions, *self.expected.values()), default=inf)

    @property
    def all_joined(self) -> bool:
        return not self.expected and self._joined == len(self)

    @property
    def all_synced(self) -> bool:
        return self._synced == len(self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The member with the longest timeout decides how long the others wait. Visits everybody."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def support(self, protocols: Protocols) -> bool:
        """Whether every member supports at least one common protocol of `protocols`."""
        return any(self._supporters[name] == len(self) for name, _ in protocols)

    def choose_protocol(self) -> str:
        """The candidate with the most votes; on a tie the one that the longest-standing voter prefers. Visits everybody."""
        first = next(iter(self))
        candidates = {name for name in first.protocol_names if self._supporters[name] == len(self)}
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]


CONSUMER_PROTOCOL = "consumer"
_HEAD = Struct(">hi")  # version, how many topics


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribes to, or None if the bytes have another format. In every version, Kafka's
    ConsumerProtocolSubscription begins with a version and an array of topic names; what follows is not read."""
    view = memoryview(metadata)
    try:
        _, count = _HEAD.unpack_from(view)
        if not 0 <= count <= len(view):
            return None
        topics, position = [], _HEAD.size
        for _ in range(count):
            topic, position = read_string(view, position)
            topics.append(topic or "")
        return frozenset(topics)
    except (StructError, ProtocolError):
        return None
