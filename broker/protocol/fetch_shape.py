"""What stays the same from one typical Fetch request of a connection to the next, for the fast lane (handlers/fetch_lane.py).

Typical means: version 9 or later, no session, no forgotten topics, no tags, hence not a replica. Then the bytes before the topics
and the bytes after them are the same each time: both are compared in one piece, and were parsed once. Between them are the
topics, each with rows of fixed size: the partitions and offsets change with each request. Nothing here judges a request: any
other shape is left to `parse_fetch`.

The answers are those of `encode_fetch_response`, byte for byte, preceded by the frame header.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from broker.errors import ProtocolError
from broker.protocol.api import ApiKey
from broker.protocol.fetch import (
    FLEXIBLE_FROM,
    RACK_FROM,
    REPLICA_TAGGED_FROM,
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    parse_fetch,
)
from broker.protocol.framing import Request
from broker.protocol.primitives import TOPIC_ID_BYTES, read_compact_string, read_string, write_uvarint

FIRST_VERSION = 9  # the first with a leader epoch; current clients send 11 to 17
CONSTANT_BYTES_MAX = 512  # remembered per connection; client ids and racks are shorter
ROWS_MAX = 1_000  # of one topic
_struct = lru_cache(Struct)  # a few, shared by all connections: each is larger than everything else that a connection remembers
_ANSWER_HEAD = Struct(">ii")
_COUNT = Struct(">i")
_NAME = Struct(">h")
_SINGLE_BYTE = 0x7F
_SETTINGS_BYTES = 25  # replica id, four settings, session id and epoch

Row = tuple[int, int, int, int, Any]  # partition, leader epoch, offset, maximum bytes, and tags: usually none
Asked = tuple[str | bytes, bytes, list[Row]]  # a topic, its bytes as received, and its rows
Found = tuple[int, int, int, int]  # partition, visible offset, log start offset, size of its records
Answered = tuple[bytes, Sequence[Found]]  # a topic's bytes as received, and its rows


class FetchShape:
    """See the module docstring. Requests are compared with `api`, `constant` and `tail`; `settings` is what those mean."""

    __slots__ = (
        "_empty_end",
        "_empty_row",
        "_end",
        "_head",
        "_known",
        "_middle",
        "_row",
        "_row_end",
        "api",
        "constant",
        "has_ids",
        "is_flexible",
        "rows",
        "settings",
        "tail",
        "version",
    )

    def __init__(self, version: int, constant: bytes, settings: FetchRequest) -> None:
        self.api = int(ApiKey.FETCH) << 16 | version
        self.version = version
        self.constant = constant
        self.settings = settings
        self.is_flexible = is_flexible = version >= FLEXIBLE_FROM
        self.has_ids = version >= TOPIC_IDS_FROM
        # Skipped: a follower's last fetched epoch and log start offset. Versions without tags get empty ones.
        self.rows = _struct(">iiq12xiB" if is_flexible else ">iiq8xi0s")
        # No aborted transactions; no preferred read replica.
        if is_flexible:
            self._middle = (b"\x01" if settings.read_committed else b"\0") + b"\xff\xff\xff\xff"
        else:
            replica = b"\xff\xff\xff\xff" if version >= RACK_FROM else b""
            self._middle = (b"\0\0\0\0" if settings.read_committed else b"\xff\xff\xff\xff") + replica
        self._row = _struct(f">ihqqq{len(self._middle)}s")
        # The header's tags, no throttling, no error, no session.
        self._head = (b"\0" if is_flexible else b"") + bytes(10)
        self._row_end = b"\0" if is_flexible else b""  # no tags
        self.set_tail(b"")
        self._empty_end = self._middle + (b"\x01\0" if is_flexible else bytes(4))
        self._empty_row = _struct(f">ihqqq{len(self._empty_end)}s")
        # The bytes between the settings and the rows of a request for one topic; the answer has the same bytes there.
        self._known: tuple[bytes, str | bytes, bytes, int] = b"", "", b"", 0

    def set_tail(self, tail: bytes) -> None:
        """Set the bytes that follow the topics."""
        self.tail, self._end = tail, self._row_end + tail

    def topics(self, buffer: bytearray, view: memoryview, position: int, frame_end: int) -> list[Asked] | None:
        """The topics of a request, which begin at `position`; None if it is unusual in any way. StructError, IndexError,
        ValueError: likewise."""
        lead, topic, raw, count = self._known
        if lead and buffer.startswith(lead, position):  # the same single topic and number of partitions as last time
            position += len(lead)
            end = position + count * self.rows.size
            if end + len(self._end) != frame_end or not buffer.startswith(self._end, end):
                return None
            return [(topic, raw, list(self.rows.iter_unpack(view[position:end])))]
        start = position
        topics, position = self.walk(buffer, view, position)
        if topics is None or position + len(self.tail) != frame_end or not buffer.startswith(self.tail, position):
            return None
        if len(topics) == 1:
            ((topic, raw, rows),) = topics
            lead = bytes(view[start : position - len(rows) * self.rows.size - len(self._row_end)])
            self._known = lead, topic, raw, len(rows)
        return topics

    def walk(self, buffer: bytearray | memoryview, view: memoryview, position: int) -> tuple[list[Asked] | None, int]:
        """The topics that begin at `position`, and where they end."""
        is_flexible, size = self.is_flexible, self.rows.size
        if is_flexible:
            left = buffer[position] - 1
            position += 1
        else:
            (left,) = _COUNT.unpack_from(buffer, position)
            position += 4
        if not 0 < left < _SINGLE_BYTE:
            return None, position
        topics: list[Asked] = []
        before, topic = b"", ""  # type: bytes, str | bytes
        while left:
            left -= 1
            start = position
            if self.has_ids:
                position += TOPIC_ID_BYTES
                topic = raw = bytes(view[start:position])
            else:
                if is_flexible:
                    length = buffer[position] - 1
                    position += 1
                else:
                    (length,) = _NAME.unpack_from(buffer, position)
                    position += 2
                if not 0 < length < _SINGLE_BYTE:
                    return None, position
                topic = str(view[position : position + length], "utf-8")
                position += length
                raw = bytes(view[start:position])
            if is_flexible:
                count = buffer[position] - 1
                position += 1
                if count >= _SINGLE_BYTE:
                    return None, position
            else:
                (count,) = _COUNT.unpack_from(buffer, position)
                position += 4
            end = position + count * size
            if not 0 < count <= ROWS_MAX or end > len(view) or raw == before:  # adjacent equal topics are answered as one
                return None, position
            topics.append((topic, raw, list(self.rows.iter_unpack(view[position:end]))))
            before, position = raw, end
            if is_flexible:
                if buffer[position]:
                    return None, position
                position += 1
        return topics, position

    def request(self, topics: Sequence[Asked]) -> FetchRequest:
        """What `parse_fetch` would have returned."""
        rows = [
            FetchPartition(topic, index, offset, bytes_max, epoch)
            for topic, _, asked in topics
            for index, epoch, offset, bytes_max, _ in asked
        ]
        return self.settings._replace(partitions=rows)

    def answer(self, correlation_id: int, topics: Sequence[Answered]) -> list[bytes]:
        """The whole answer, length included, without the records: a piece of bytes before those of each partition that has any,
        and a last one, perhaps empty, after them all."""
        is_flexible, pack, middle, row_end = self.is_flexible, self._row.pack, self._middle, self._row_end
        pieces: list[bytes] = []
        lead, _, raw, _ = self._known
        if raw is topics[0][0]:  # this answers the request that `topics` read last
            text, usual = self._head + lead, True
        else:
            text, usual = self._head + self._count(len(topics)), False
        total = 4
        for raw, rows in topics:
            if not usual:
                text += raw + self._count(len(rows))
            for index, visible, log_start, size in rows:
                if size:
                    text += pack(index, 0, visible, visible, log_start, middle)
                    text += write_uvarint(size + 1) if is_flexible else _COUNT.pack(size)
                    total += len(text) + size
                    pieces.append(text)
                    text = row_end
                else:
                    text += self._empty_row.pack(index, 0, visible, visible, log_start, self._empty_end)
            text += row_end  # the end of a topic is the same
        text += row_end
        pieces.append(text)
        pieces[0] = _ANSWER_HEAD.pack(total + len(text), correlation_id) + pieces[0]
        return pieces

    def _count(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self.is_flexible else _COUNT.pack(count)


def shape_of(request: Request, frame: memoryview) -> FetchShape | None:
    """The shape of a request that was handled, `frame` without its length; None if it is not typical."""
    try:
        return _shape_of(request, frame) if request.version >= FIRST_VERSION else None
    except (StructError, IndexError, ValueError, ProtocolError):
        return None


def _shape_of(request: Request, frame: memoryview) -> FetchShape | None:
    version = request.version
    settings = parse_fetch(request.body, version)._replace(partitions=[])
    start = len(frame) - len(request.body) + (_SETTINGS_BYTES if version < REPLICA_TAGGED_FROM else _SETTINGS_BYTES - 4)
    constant = bytes(frame[8:start])
    if settings.session_id or len(constant) > CONSTANT_BYTES_MAX:
        return None
    shape = FetchShape(version, constant, settings)
    topics, position = shape.walk(frame, frame, start)
    if topics is None or not _is_plain(bytes(frame[position:]), version):
        return None
    shape.set_tail(bytes(frame[position:]))
    return shape


def _is_plain(tail: bytes, version: int) -> bool:
    """Whether only a rack follows the topics: no forgotten partitions, and no tags, which would mark a broker's request."""
    view = memoryview(tail)
    if len(tail) > CONSTANT_BYTES_MAX:
        return False
    if version >= FLEXIBLE_FROM:
        return tail[0] == 1 and tail[read_compact_string(view, 1)[1] :] == b"\0"
    return tail[:4] == bytes(4) and (read_string(view, 4)[1] if version >= RACK_FROM else 4) == len(tail)
