"""A group's membership as the value of a record of `__consumer_offsets`, in Kafka's own layout (GroupMetadataValue, version 3).

Protocol type, generation, protocol, leader, time of the state, members; a member: id, instance id, client id, client host,
rebalance and session timeout, subscription, assignment.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from broker.errors import ProtocolError
from broker.groups.messages import StoredGroup, StoredMember
from broker.protocol.primitives import read_string, write_string

_INT16 = Struct(">h")
_INT32 = Struct(">i")
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
