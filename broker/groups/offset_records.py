"""The records of `__consumer_offsets`: Kafka's own layout, so its tools can read ours.

A committed offset has a key of version 1 (group, topic, partition) and a value of version 3 (offset, leader epoch, metadata,
commit time). A group's membership has a key of version 2 (group); `group_records.py` has its value. A null value removes the
entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from broker.errors import ProtocolError
from broker.protocol.primitives import read_string, write_string

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
