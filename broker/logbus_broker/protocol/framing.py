"""Frames and request headers: four length bytes, then api key, version, correlation id, client id and, if flexible, tags.

Everything here is validated before anything is allocated: a false length closes the connection, it never reserves memory.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from logbus_broker.errors import ProtocolError, UnsupportedVersion
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.primitives import skip_tags
from logbus_broker.security.state import ANONYMOUS

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
