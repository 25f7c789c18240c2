"""The records of `__consumer_offsets`: Kafka's own layout, so its tools can read ours.

A committed offset has a key of version 1 (group, topic, partition) and a value of version 3 (offset, leader epoch, metadata,
commit time). A group's membership has a key of version 2 (group) and as its value GroupMetadataValue, version 3: protocol type,
generation, protocol, leader, time of the state, members; a member: id, instance id, client id, client host, rebalance and session
timeout, subscription, assignment. A null value removes the entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from logbus_broker.errors import ProtocolError
from logbus_broker.groups.members import StoredGroup, StoredMember
from logbus_broker.protocol.framing import read_string, write_string

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_VALUE_HEAD = Struct(">hqi")  # version, offset, leader epoch
_INT64 = Struct(">q")
_OFFSET_KEYS, _GROUP_KEY = (0, 1), 2  # versions
_VALUE_VERSION = 3


class OffsetKey(NamedTuple):
    """A tuple, because its hash is computed in C: a commit of thousands of partitions looks each of them up several times."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int  # by the wall clock of the coordinator that took the commit
    received_at: float = field(compare=False)  # on our monotonic clock, in seconds: when it was committed here, or loaded


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return _INT16.pack(_GROUP_KEY) + write_string(key.group)
    return _INT16.pack(1) + write_string(key.group) + write_string(key.topic) + _INT32.pack(key.partition)


def decode_key(raw: bytes) -> OffsetKey | GroupKey | None:
    """The key, or None for a record of another kind (KIP-848 and later); ValueError if the bytes are not a key."""
    view = memoryview(raw)
    try:
        (version,) = _INT16.unpack_from(view)
        if version not in (*_OFFSET_KEYS, _GROUP_KEY):
            return None
        group, position = read_string(view, 2)
        if version == _GROUP_KEY:
            return GroupKey(group or "")
        topic, position = read_string(view, position)
        return OffsetKey(group or "", topic or "", _INT32.unpack_from(view, position)[0])
    except (StructError, ProtocolError) as error:
        raise ValueError(f"a key of {len(raw)} bytes that cannot be read: {error}") from error


def encode_value(value: CommittedOffset) -> bytes:
    head = _VALUE_HEAD.pack(_VALUE_VERSION, value.offset, value.leader_epoch)
    return head + write_string(value.metadata) + _INT64.pack(value.committed_at_ms)


def decode_value(raw: bytes, received_at: float) -> CommittedOffset:
    """The value; ValueError if the bytes are not a value, or one of a version that we do not write."""
    view = memoryview(raw)
    try:
        version, offset, epoch = _VALUE_HEAD.unpack_from(view)
        if version != _VALUE_VERSION:
            raise ValueError(f"a value of version {version}, not {_VALUE_VERSION}")
        metadata, position = read_string(view, _VALUE_HEAD.size)
        return CommittedOffset(offset, epoch, metadata or "", _INT64.unpack_from(view, position)[0], received_at)
    except (StructError, ProtocolError) as error:
        raise ValueError(f"a value of {len(raw)} bytes that cannot be read: {error}") from error


_TIME_AND_COUNT = Struct(">qi")
_TIMEOUTS = Struct(">ii")  # rebalance, session
_VERSION = 3


def encode_group(group: StoredGroup, at_ms: int) -> bytes:
    parts = [
        _INT16.pack(_VERSION),
        write_string(group.protocol_type),
        _INT32.pack(group.generation),
        write_string(group.protocol_name or None),
        write_string(group.leader_id),
        _TIME_AND_COUNT.pack(at_ms, len(group.members)),
    ]
    for member in group.members:
        parts += (
            write_string(member.member_id),
            write_string(member.instance_id),
            write_string(member.client_id),
            write_string(f"/{member.client_host}"),
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            *(_INT32.pack(len(member.metadata)), member.metadata),
            *(_INT32.pack(len(member.assignment)), member.assignment),
        )
    return b"".join(parts)


def decode_group(raw: bytes) -> StoredGroup:
    """The group; ValueError if the bytes are not a group, or one of a version that we do not write."""
    view = memoryview(raw)
    try:
        (version,) = _INT16.unpack_from(view)
        if version != _VERSION:
            raise ValueError(f"a group of version {version}, not {_VERSION}")
        protocol_type, position = read_string(view, _INT16.size)
        (generation,) = _INT32.unpack_from(view, position)
        protocol_name, position = read_string(view, position + _INT32.size)
        leader_id, position = read_string(view, position)
        _, count = _TIME_AND_COUNT.unpack_from(view, position)
        position += _TIME_AND_COUNT.size
        members = []
        for _ in range(count):
            member, position = _decode_member(view, position)
            members.append(member)
    except (StructError, ProtocolError) as error:
        raise ValueError(f"a group of {len(raw)} bytes that cannot be read: {error}") from error
    instances = [member.instance_id for member in members if member.instance_id is not None]
    if len({member.member_id for member in members}) < len(members) or len(set(instances)) < len(instances):
        raise ValueError("a group in which two members have the same id")
    if members and not protocol_name:
        raise ValueError("a group with members and without a protocol")
    return StoredGroup(
        protocol_type=protocol_type or "",
        generation=generation,
        protocol_name=protocol_name or "",
        leader_id=leader_id,
        members=tuple(members),
    )


def _decode_member(view: memoryview, position: int) -> tuple[StoredMember, int]:
    member_id, position = read_string(view, position)
    instance_id, position = read_string(view, position)
    client_id, position = read_string(view, position)
    client_host, position = read_string(view, position)
    rebalance_timeout_ms, session_timeout_ms = _TIMEOUTS.unpack_from(view, position)
    metadata, position = _read_bytes(view, position + _TIMEOUTS.size)
    assignment, position = _read_bytes(view, position)
    member = StoredMember(
        member_id=member_id or "",
        instance_id=instance_id,
        client_id=client_id or "",
        client_host=(client_host or "").removeprefix("/"),
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        metadata=metadata,
        assignment=assignment,
    )
    return member, position


def _read_bytes(view: memoryview, position: int) -> tuple[bytes, int]:
    """Null is read as empty."""
    (length,) = _INT32.unpack_from(view, position)
    position += _INT32.size
    end = position + max(length, 0)
    if end > len(view):
        raise ProtocolError("bytes longer than their record")
    return bytes(view[position:end]), end
