"""What stays the same from one typical Produce request of a connection to the next, for the fast lane (handlers/fast_lane.py).

Typical means: one topic, any number of its partitions, no transaction, no tags, acks of 0, 1 or -1, names of valid length. From
the length of the client id to the topic name such a request has the same bytes each time: they are compared in one piece, and
were parsed once. Nothing here judges a request: one of any other shape is left to `parse_produce`.

The answers are those of `encode_produce_response` for accepted batches, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError

from broker.errors import ProtocolError
from broker.protocol.api import APIS, ApiKey
from broker.protocol.primitives import read_compact_string, read_string
from broker.protocol.produce import FLEXIBLE_FROM, topic_head

CONSTANT_BYTES_MAX = 512  # remembered per shape of a connection; client ids and topic names are shorter
_API = Struct(">HH")
_ACKS_TIMEOUT_COUNT = Struct(">hii")
_ACKS_TIMEOUT = Struct(">hi")
_OFFERED = APIS[ApiKey.PRODUCE]
_NO_LOG_APPEND_TIME = -1


class ProduceShape:
    """See the module docstring. Requests are compared with `api` and `constant`; the rest is what those mean."""

    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_end",
        "_has_start",
        "_row",
        "_row_end",
        "_version",
        "acks",
        "api",
        "constant",
        "is_flexible",
        "topic",
    )

    def __init__(self, version: int, constant: bytes, acks: int, topic: str) -> None:
        self.api = int(ApiKey.PRODUCE) << 16 | version
        self.constant = constant
        self.acks = acks
        self.topic = topic
        self.is_flexible = is_flexible = version >= FLEXIBLE_FROM
        self._version = version
        self._has_start = version >= 5
        # Of a row: no record errors and no error message, where the version has them; of the answer: no throttling.
        self._row_end = b"\x01\0\0" if is_flexible else b"\0\0\0\0\xff\xff" if version >= 8 else b""
        self._end = bytes(6) if is_flexible else bytes(4)
        self._row = Struct(f">ihqq{'q' if self._has_start else ''}{len(self._row_end)}s")
        head = self._head(1)
        # Nearly every answer has one row: packed with one call.
        self._answer = Struct(f">ii{len(head)}sihqq{'q' if self._has_start else ''}{len(self._row_end) + len(self._end)}s")
        self._answer_bytes = self._answer.size - 4, head, self._row_end + self._end

    def answer(self, correlation_id: int, index: int, base_offset: int, log_start_offset: int) -> bytes:
        """The whole answer, length included, to a request for one partition."""
        length, head, end = self._answer_bytes
        if self._has_start:
            return self._answer.pack(
                length, correlation_id, head, index, 0, base_offset, _NO_LOG_APPEND_TIME, log_start_offset, end
            )
        return self._answer.pack(length, correlation_id, head, index, 0, base_offset, _NO_LOG_APPEND_TIME, end)

    def answer_all(self, correlation_id: int, rows: Sequence[tuple[int, int, int]]) -> bytes:
        """The same for several partitions: index, base offset and log start offset of each."""
        parts = [self._head(len(rows))]
        for index, base_offset, log_start_offset in rows:
            start = (log_start_offset,) if self._has_start else ()
            parts.append(self._row.pack(index, 0, base_offset, _NO_LOG_APPEND_TIME, *start, self._row_end))
        parts.append(self._end)
        content = b"".join(parts)
        return b"".join(((len(content) + 4).to_bytes(4, "big"), correlation_id.to_bytes(4, "big", signed=True), content))

    def _head(self, partition_count: int) -> bytes:
        """What follows the correlation id: the header's tags, and the topic."""
        return (b"\0" if self.is_flexible else b"") + topic_head(self.topic, 1, partition_count, self._version)


def shape_of(frame: memoryview) -> ProduceShape | None:
    """The shape of a request, given without its length prefix; None if it is not typical."""
    try:
        return _shape_of(frame)
    except (StructError, IndexError, ProtocolError):
        return None


def _shape_of(frame: memoryview) -> ProduceShape | None:
    api_key, version = _API.unpack_from(frame)
    if api_key != ApiKey.PRODUCE or version not in _OFFERED:
        return None
    (name_length,) = Struct(">h").unpack_from(frame, 8)
    position = 10 + max(name_length, 0)
    if version >= FLEXIBLE_FROM:
        if frame[position] or frame[position + 1]:  # tags, a transaction
            return None
        acks, _ = _ACKS_TIMEOUT.unpack_from(frame, position + 2)
        topic_count = frame[position + 8] - 1
        topic, end = read_compact_string(frame, position + 9)
    else:
        if bytes(frame[position : position + 2]) != b"\xff\xff":
            return None
        acks, _, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position + 2)
        topic, end = read_string(frame, position + 12)
    if topic_count != 1 or acks not in (0, 1, -1) or not topic or len(topic) > 249 or end - 8 > CONSTANT_BYTES_MAX:
        return None
    return ProduceShape(version, bytes(frame[8:end]), acks, topic)
