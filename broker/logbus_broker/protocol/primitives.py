"""The primitives that the hand-written codecs share: unsigned varints, compact lengths, strings, tagged fields, and the tags that
name a partition's current leader.

A reader takes (view, position) and returns (value, next position). Lengths are checked against the view before they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from logbus_broker.errors import ProtocolError

_INT16 = Struct(">h")
TOPIC_ID_BYTES = 16
STRING_BYTES_MAX = 0x7FFF  # Kafka's own limit, even where the length field is wider than two bytes
_TAGS_MAX = 16  # in one section; current messages have at most five. Each takes two bytes of the request and far more CPU time
# In one Produce or Fetch: the default of logbus.partitions.max. Each takes a few bytes of the request and some ten microseconds
# of the loop's time.
PARTITIONS_MAX = 10_000


def read_uvarint(view: bytes | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes."""
    if position < len(view) and view[position] < 0x80:
        return view[position], position + 1
    value = shift = 0
    while shift < 35:
        if position >= len(view):
            raise ProtocolError("a varint beyond the end of the request")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ProtocolError("a varint of more than five bytes")


def write_uvarint(value: int) -> bytes:
    """The shortest encoding of a value from 0 to 2^32-1."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_string(view: memoryview, position: int) -> tuple[str | None, int]:
    """A nullable string with a two-byte length."""
    (length,) = _INT16.unpack_from(view, position)
    return _text(view, position + 2, length)


def read_compact_string(view: memoryview, position: int) -> tuple[str | None, int]:
    """A nullable string with a varint length (plus one)."""
    length, position = read_uvarint(view, position)
    return _text(view, position, length - 1)


def read_topic_id(view: memoryview, position: int) -> tuple[bytes, int]:
    end = position + TOPIC_ID_BYTES
    if end > len(view):
        raise ProtocolError("a topic id beyond the end of its message")
    return bytes(view[position:end]), end


def _text(view: memoryview, position: int, length: int) -> tuple[str | None, int]:
    if length == -1:
        return None, position
    end = position + length
    if not 0 <= length <= STRING_BYTES_MAX or end > len(view):
        raise ProtocolError("a string longer than its request, or than Kafka's strings may be")
    try:
        return str(view[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise ProtocolError("a string that is not UTF-8") from error


def read_tags(view: memoryview, position: int) -> tuple[list[tuple[int, int, int]], int]:
    """(number, start, size) of each field in a tagged-field section."""
    count, position = read_uvarint(view, position)
    if count > _TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields (accepted: {_TAGS_MAX})")
    tags: list[tuple[int, int, int]] = []
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        tags.append((tag, position, size))
        position += size
        if position > len(view):
            raise ProtocolError("a tagged field longer than its message")
    return tags, position


def skip_tags(view: memoryview, position: int) -> int:
    """Skip a tagged-field section: unknown tags are legal and ignored."""
    if position < len(view) and not view[position]:  # nearly always: there are none
        return position + 1
    return read_tags(view, position)[1]


def check_partitions(count: int, before: int = 0) -> None:
    """Reject a count of topics or partitions, added to those read `before`, that is too high, before reading any of them."""
    if count > PARTITIONS_MAX - before:
        raise ProtocolError(f"{before + count} topics or partitions in one request (accepted: {PARTITIONS_MAX})")


def write_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def write_compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return write_uvarint(len(raw) + 1) + raw


_LEADER = Struct(">ii")
_LEADER_BYTES = _LEADER.size + 1  # with its own, empty tag section
_INT32 = Struct(">i")
_ENDPOINTS_TAG = 0
_NO_TAGS = b"\0"


class CurrentLeader(NamedTuple):
    """The broker that leads a partition, in which epoch, and its address."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def write_leader_tags(leader: CurrentLeader, tag: int) -> bytes:
    """The tags of a partition's answer; `tag` is the tag number of CurrentLeader in that message."""
    head = write_uvarint(1) + write_uvarint(tag) + write_uvarint(_LEADER_BYTES)
    return head + _LEADER.pack(leader.broker_id, leader.leader_epoch) + _NO_TAGS


def write_endpoint_tags(leaders: Iterable[CurrentLeader]) -> bytes:
    """The tags of the whole answer: each broker once."""
    nodes = {leader.broker_id: leader for leader in leaders}
    if not nodes:
        return _NO_TAGS
    rows = [
        b"".join(
            (
                _INT32.pack(node.broker_id),
                write_compact_string(node.host),
                _INT32.pack(node.port),
                write_compact_string(node.rack),
                _NO_TAGS,
            )
        )
        for node in nodes.values()
    ]
    data = write_uvarint(len(rows) + 1) + b"".join(rows)
    return write_uvarint(1) + write_uvarint(_ENDPOINTS_TAG) + write_uvarint(len(data)) + data
