"""Frames and request headers: four length bytes, then api key, version, correlation id, client id and, if flexible, tags; and the
primitives that they and the hand-written codecs share: unsigned varints, compact lengths, strings, tagged fields.

A reader of a primitive takes (view, position) and returns (value, next position). Lengths are checked against the view before
they are used.

Everything here is validated before anything is allocated: a false length closes the connection, it never reserves memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from logbus_broker.errors import ProtocolError, UnsupportedVersion
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.security.state import ANONYMOUS

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


# Frames and request headers: four length bytes, then api key, version, correlation id, client id and, if flexible, tags.


FRAME_LENGTH = Struct(">i")
FRAME_HEAD = Struct(">iIi")  # length, api key and version as one number, correlation id
CONSTANT_START = FRAME_HEAD.size  # what is the same in all requests of one shape begins here (fetch.py, produce.py)
_HEADER = Struct(">hhih")  # api key, version, correlation id, length of the client id
_HEAD = Struct(">ii")
# ApiVersions is always answered with the old header: the client does not know yet what the broker supports.
_FLEXIBLE_RESPONSE_FROM = {int(key): 1 << 15 if key == ApiKey.API_VERSIONS else api.flexible_from for key, api in APIS.items()}
REQUEST_BYTES_MIN = 8  # api key, version, correlation id


class Origin(NamedTuple):
    """Where a connection's requests come from: the peer's address, the listener that it connected to, and who it is. One object
    per connection, so that it adds no cost per request; another one once the peer has logged in."""

    host: str
    listener: str
    principal: str = ANONYMOUS


NOWHERE = Origin("", "")


class Request(NamedTuple):
    """One framed request; `body` is a view of the connection's buffer, valid until the end of the loop's turn."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    supported: bool = True  # False only for ApiVersions, which answers an unknown version instead of closing
    origin: Origin = NOWHERE


def frame_length(buffer: bytearray, start: int, end: int, *, limit: int, least: int = REQUEST_BYTES_MIN) -> int | None:
    """Length of the frame beginning at `start`, without its four length bytes; None while fewer than four have arrived."""
    if end - start < 4:
        return None
    length: int = FRAME_LENGTH.unpack_from(buffer, start)[0]
    if not least <= length <= limit:
        raise ProtocolError(f"a frame of {length} bytes (accepted: {least} to {limit}, socket.request.max.bytes)")
    return length


def read_request(frame: memoryview, origin: Origin = NOWHERE) -> Request:
    """Read the header; ProtocolError if it is malformed, UnsupportedVersion if the API or version is not supported."""
    try:
        api_key, version, correlation_id, name_length = _HEADER.unpack_from(frame)
    except Exception as error:
        raise ProtocolError(f"a request header of {len(frame)} bytes") from error
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersion(f"api key {api_key} version {version} is not supported")
    if not api.first <= version <= api.last:
        if api_key != ApiKey.API_VERSIONS:
            raise UnsupportedVersion(
                f"{ApiKey(api_key).name} version {version} is not supported (only {api.first} to {api.last})"
            )
        return Request(api_key, version, correlation_id, None, frame[0:0], supported=False, origin=origin)
    position = _HEADER.size + max(name_length, 0)
    if position > len(frame) or name_length < -1:
        raise ProtocolError("a client id longer than its frame")
    client_id = None if name_length < 0 else str(frame[_HEADER.size : position], "utf-8", "replace")
    if version >= api.flexible_from:
        has_none = position < len(frame) and not frame[position]  # the usual case; a call costs more than this check
        position = position + 1 if has_none else skip_tags(frame, position)
    # Runs once per request: calling the class would end up here too, in twice the time.
    return tuple.__new__(Request, (api_key, version, correlation_id, client_id, frame[position:], True, origin))


def response_head(request: Request, body_bytes: int) -> bytes:
    """What precedes a response's body of `body_bytes`: the frame's length, the correlation id, and the empty tag section of a
    flexible response."""
    if request.version >= _FLEXIBLE_RESPONSE_FROM[request.api_key]:
        return _HEAD.pack(body_bytes + 5, request.correlation_id) + b"\0"
    return _HEAD.pack(body_bytes + 4, request.correlation_id)


def request_frame(api_key: int, version: int, correlation_id: int, client_id: bytes, body: bytes) -> bytes:
    """A whole request, as a client sends it; here, the client is a broker that sends it to another."""
    tags = b"\0" if version >= APIS[api_key].flexible_from else b""
    length = _HEADER.size + len(client_id) + len(tags) + len(body)
    head = FRAME_LENGTH.pack(length) + _HEADER.pack(api_key, version, correlation_id, len(client_id))
    return b"".join((head, client_id, tags, body))


def read_response(frame: memoryview, api_key: int, version: int) -> tuple[int, memoryview]:
    """The correlation id and the body of the answer to a request of that version."""
    if len(frame) < FRAME_LENGTH.size:
        raise ProtocolError(f"an answer of {len(frame)} bytes")
    (correlation_id,) = FRAME_LENGTH.unpack_from(frame)
    position = FRAME_LENGTH.size
    if version >= _FLEXIBLE_RESPONSE_FROM[api_key]:
        position = skip_tags(frame, position)
    return correlation_id, frame[position:]
