"""The inputs and outputs of the group state machine: values, independent of protocol versions.

A ticket represents a waiting request; the state machine only ever hands it back with the answer. Metadata and assignments are
bytes that members write for each other: the broker passes them on unread, which is why any assignor works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from logbus_broker.errors import RequestError

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
