"""Fetch, versions 4 to 17: the request as values, the response by hand, and what a connection's fast path remembers.

The response by hand, because it is a header followed by bytes that never enter this process: the encoder returns a small header
as bytes for each partition, and the caller puts the file slice after it, to be sent by sendfile. It takes one microsecond for one
partition.

From version 13 on, a topic is identified by the 16 bytes of its id instead of its name: `topic` is then those bytes, in the
request and in the response, and costs no more than a name. From 15 on, the replica id is a tagged field that only followers send.

`FetchShape` is what stays the same from one typical request of a connection to the next (api/fetch_fast_path.py). Typical means:
version 9 or later, no session, no forgotten topics, no tags, hence not a replica. Then the bytes before the topics and the bytes
after them are the same each time: both are compared in one piece, and were parsed once. Between them are the topics, each with
rows of fixed size: the partitions and offsets change with each request. Nothing here judges a request: any other shape is left to
`parse_fetch`. The responses are those of `encode_fetch_response`, byte for byte, preceded by the frame header.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import decode_whole_request
from logbus_broker.protocol.framing import (
    TOPIC_ID_BYTES,
    CurrentLeader,
    Request,
    check_partitions,
    read_compact_string,
    read_string,
    write_compact_string,
    write_endpoint_tags,
    write_leader_tags,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
ADDRESSES_FROM = 16
_RACK_FROM = 11  # the consumer's rack, and in the answer the preferred read replica
_REPLICA_TAGGED_FROM = 15
_ENDPOINTS_FROM = 16
_LEADER_TAG = 1
_INT32 = Struct(">i")
_NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)
_ANSWER_V4 = Struct(">ihqq")  # index, error, high watermark, last stable offset
_ANSWER_V5 = Struct(">ihqqq")  # ... log start offset


class FetchPartition(NamedTuple):
    topic: str | bytes
    partition_index: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int = -1


class FetchRequest(NamedTuple):
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    read_committed: bool
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]


class FetchAnswer(NamedTuple):
    """One partition's header; `size` bytes of records follow it on the wire."""

    topic: str | bytes
    partition_index: int
    error: int
    high_watermark: int
    log_start_offset: int
    size: int
    leader: CurrentLeader | None = None  # with an error that sends the client elsewhere, if known


def parse_fetch(body: memoryview, version: int) -> FetchRequest:
    """Read a request of any supported version."""
    message = decode_whole_request(ApiKey.FETCH, version, bytes(body))
    new, kind = tuple.__new__, FetchPartition  # half the time of calling the class
    partitions: list[FetchPartition] = []
    for topic in message.topics:
        key = topic.topic if version < TOPIC_IDS_FROM else topic.topic_id.bytes if topic.topic_id else _NO_TOPIC_ID
        partitions += [
            new(kind, (key, part.partition, part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch))
            for part in topic.partitions
        ]
    check_partitions(len(partitions))
    return FetchRequest(
        message.max_wait_ms,
        message.min_bytes,
        message.max_bytes,
        message.isolation_level == 1,
        message.session_id,
        message.session_epoch,
        partitions,
    )


def encode_fetch_response(
    answers: list[FetchAnswer], version: int, *, error: int = 0, read_committed: bool = False
) -> list[bytes]:
    """One piece of bytes before each partition's records, and a last one after them all: len(answers) + 1 pieces.

    Partitions of one topic must be adjacent. The session id is always 0: no sessions (KIP-227 allows it).
    """
    flexible = version >= FLEXIBLE_FROM
    topics = [list(rows) for _, rows in groupby(answers, attrgetter("topic"))]
    pending = b"\0\0\0\0"  # throttle time
    if version >= 7:
        pending += error.to_bytes(2, "big") + b"\0\0\0\0"
    pending += write_uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))
    pieces: list[bytes] = []
    for rows in topics:
        pending += _write_topic(rows[0].topic, flexible)
        pending += write_uvarint(len(rows) + 1) if flexible else _INT32.pack(len(rows))
        for row in rows:
            pieces.append(pending + _encode_answer(row, version, read_committed))
            pending = b"\0" if flexible else b""
            if row.leader is not None and flexible:
                pending = write_leader_tags(row.leader, _LEADER_TAG)
        if flexible:
            pending += b"\0"
    if not flexible:
        return [*pieces, pending]
    leaders = (row.leader for row in answers if row.leader is not None) if version >= _ENDPOINTS_FROM else ()
    return [*pieces, pending + write_endpoint_tags(leaders)]


def _write_topic(topic: str | bytes, flexible: bool) -> bytes:
    if isinstance(topic, bytes):
        return topic
    return write_compact_string(topic) if flexible else write_string(topic)


def _encode_answer(row: FetchAnswer, version: int, read_committed: bool) -> bytes:
    if version < 5:
        head = _ANSWER_V4.pack(row.partition_index, row.error, row.high_watermark, row.high_watermark)
    else:
        head = _ANSWER_V5.pack(row.partition_index, row.error, row.high_watermark, row.high_watermark, row.log_start_offset)
    if version >= FLEXIBLE_FROM:
        aborted = b"\x01" if read_committed else b"\0"
        return head + aborted + b"\xff\xff\xff\xff" + write_uvarint(row.size + 1)
    aborted = b"\0\0\0\0" if read_committed else b"\xff\xff\xff\xff"
    replica = b"\xff\xff\xff\xff" if version >= _RACK_FROM else b""
    return head + aborted + replica + _INT32.pack(row.size)


_FIRST_VERSION = 9  # the first with a leader epoch; current clients send 11 to 17
CONSTANT_BYTES_MAX = 512  # remembered per connection; client ids and racks are shorter
_ROWS_MAX = 1_000  # of one topic
_struct = lru_cache(Struct)  # a few, shared by all connections: each is larger than everything else that a connection remembers
_ANSWER_HEAD = Struct(">ii")
_COUNT = Struct(">i")
_NAME = Struct(">h")
_SINGLE_BYTE = 0x7F
_SETTINGS_BYTES = 25  # replica id, four settings, session id and epoch

_RequestedRow = tuple[int, int, int, int, Any]  # partition, leader epoch, offset, maximum bytes, and tags: usually none
RequestedTopic = tuple[str | bytes, bytes, list[_RequestedRow]]  # a topic, its bytes as received, and its rows
ReadRow = tuple[int, int, int, int]  # partition, visible offset, log start offset, size of its records
_ReadTopic = tuple[bytes, Sequence[ReadRow]]  # a topic's bytes as received, and its rows


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
            replica = b"\xff\xff\xff\xff" if version >= _RACK_FROM else b""
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

    def topics(self, buffer: bytearray, view: memoryview, position: int, frame_end: int) -> list[RequestedTopic] | None:
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

    def walk(self, buffer: bytearray | memoryview, view: memoryview, position: int) -> tuple[list[RequestedTopic] | None, int]:
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
        topics: list[RequestedTopic] = []
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
            if not 0 < count <= _ROWS_MAX or end > len(view) or raw == before:  # adjacent equal topics are answered as one
                return None, position
            topics.append((topic, raw, list(self.rows.iter_unpack(view[position:end]))))
            before, position = raw, end
            if is_flexible:
                if buffer[position]:
                    return None, position
                position += 1
        return topics, position

    def request(self, topics: Sequence[RequestedTopic]) -> FetchRequest:
        """What `parse_fetch` would have returned."""
        rows = [
            FetchPartition(topic, index, offset, bytes_max, epoch)
            for topic, _, partitions in topics
            for index, epoch, offset, bytes_max, _ in partitions
        ]
        return self.settings._replace(partitions=rows)

    def answer(self, correlation_id: int, topics: Sequence[_ReadTopic]) -> list[bytes]:
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
        return _shape_of(request, frame) if request.version >= _FIRST_VERSION else None
    except (StructError, IndexError, ValueError, ProtocolError):
        return None


def _shape_of(request: Request, frame: memoryview) -> FetchShape | None:
    version = request.version
    settings = parse_fetch(request.body, version)._replace(partitions=[])
    start = len(frame) - len(request.body) + (_SETTINGS_BYTES if version < _REPLICA_TAGGED_FROM else _SETTINGS_BYTES - 4)
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
    return tail[:4] == bytes(4) and (read_string(view, 4)[1] if version >= _RACK_FROM else 4) == len(tail)
