"""Produce, versions 3 to 12: the request as values, the response by hand, and what a connection's fast path remembers.

The response by hand, because it is sent for every request and mostly has one row. From version 9 on the encoding is flexible
(compact lengths, tags). Versions 10 to 12 have the same bytes: 10 may name another leader in tagged fields of the response, 11
and 12 are about transactions. Names are echoed as received, whatever their length, but only valid topic names are cached.

`check_counts` judges a request of which only the beginning has arrived: a count that is too high is rejected at once.

`ProduceShape` is what stays the same from one typical request of a connection to the next (api/produce_fast_path.py). Typical
means: one topic, any number of its partitions, no transaction, no tags, acks of 0, 1 or -1, names of valid length. From the
length of the client id to the topic name such a request has the same bytes each time: they are compared in one piece, and were
parsed once. Nothing here judges a request: one of any other shape is left to `parse_produce`. The responses are those of
`encode_produce_response` for accepted batches, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import decode_whole_request
from logbus_broker.protocol.framing import (
    STRING_BYTES_MAX,
    CurrentLeader,
    check_partitions,
    read_compact_string,
    read_string,
    read_uvarint,
    write_compact_string,
    write_endpoint_tags,
    write_leader_tags,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = 9
_LEADERS_FROM = 10  # an error may name the current leader
_LEADER_TAG = 0
_MESSAGE_CHARACTERS_MAX = 300  # of an error message: enough for a sentence, even one that quotes what a client sent
_NAME_CHARACTERS_MAX = 249  # of a topic name; longer ones exist in requests only
_UVARINT_BYTES_MAX = 5
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT32_PAIR = Struct(">ii")
_NO_TAGS = b"\0\0\0"  # of the partition, of the topic, of the request
_ACKS_TIMEOUT = Struct(">hi")
_ANSWER = Struct(">ihqq")  # index, error, base offset, log append time
_ANSWER_WITH_START = Struct(">ihqqq")  # ... and log start offset


class ProducePartition(NamedTuple):
    topic: str
    partition_index: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


@dataclass(slots=True)
class ProduceAnswer:
    """What happened to one partition's batch; `base_offset` is -1 on an error."""

    topic: str
    partition_index: int
    error: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    leader: CurrentLeader | None = None  # with NOT_LEADER_OR_FOLLOWER, if known


def parse_produce(body: memoryview, version: int) -> ProduceRequest:
    """Read a request; every record set stays a view of `body`. One batch for one partition, which is what producers of replicated
    partitions send (these never take the fast path), is read straight through in a third of the generated codec's time."""
    if version >= FLEXIBLE_FROM and (usual := _parse_usual(body)) is not None:
        return usual
    message = decode_whole_request(ApiKey.PRODUCE, version, body)
    new, kind = tuple.__new__, ProducePartition  # half the time of calling the class
    partitions = [
        new(kind, (topic.name, part.index, part.records)) for topic in message.topic_data for part in topic.partition_data
    ]
    check_partitions(len(partitions))
    return ProduceRequest(message.transactional_id, message.acks, message.timeout_ms, partitions)


def _parse_usual(body: memoryview) -> ProduceRequest | None:
    """One batch for one partition, no transaction, no tags; None for anything else, well-formed or not."""
    # It follows: 1 byte transactional id, 2 acks, 4 timeout, 1 topic count, the name and its length, 1 partition count, 4 index.
    try:
        length_at = body[8] + 13
        head = _usual_head(bytes(body[:length_at]))
        if head is None:
            return None
        length, start = read_uvarint(body, length_at)
    except (IndexError, ProtocolError):
        return None
    end = start + length - 1
    if not length or len(body) != end + 3 or body[end:] != _NO_TAGS:
        return None
    acks, timeout_ms, topic, index = head
    part = tuple.__new__(ProducePartition, (topic, index, body[start:end]))  # half the time of calling the class
    return tuple.__new__(ProduceRequest, (None, acks, timeout_ms, [part]))


@lru_cache(maxsize=4096)
def _usual_head(raw: bytes) -> tuple[int, int, str, int] | None:
    """Acks, timeout, topic and partition index from what precedes the records; None if it is unusual in any way.

    Clients choose what is cached here, but not how much: `raw` has at most 268 bytes, because its length comes from one byte."""
    name_length = raw[8]
    count_at = name_length + 8
    if raw[0] or raw[7] != 2 or not 1 < name_length < 0x80 or len(raw) != count_at + 5 or raw[count_at] != 2:
        return None
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(raw, 1)
    (index,) = _INT32.unpack_from(raw, count_at + 1)
    try:
        return acks, timeout_ms, str(raw[9:count_at], "utf-8"), index
    except UnicodeDecodeError:
        return None


def check_counts(body: memoryview, version: int) -> bool:
    """Examine the beginning of a request, the rest of which may not have arrived yet: ProtocolError if it already names too many
    topics or partitions. False if too little has arrived to decide."""
    try:
        return _check_flexible(body) if version >= FLEXIBLE_FROM else _check_classic(body)
    except (StructError, IndexError):
        return False


def _check_classic(body: memoryview) -> bool:
    (length,) = _INT16.unpack_from(body)  # transactional id
    position = 2 + max(length, 0) + _ACKS_TIMEOUT.size
    (topic_count,) = _INT32.unpack_from(body, position)
    check_partitions(topic_count)
    if topic_count > 0:
        (length,) = _INT16.unpack_from(body, position + 4)
        check_partitions(_INT32.unpack_from(body, position + 6 + max(length, 0))[0])
    return True


def _check_flexible(body: memoryview) -> bool:
    length, position = _uvarint_of_part(body, 0)  # transactional id
    topic_count, position = _uvarint_of_part(body, position + _skipped(length) + _ACKS_TIMEOUT.size)
    check_partitions(topic_count - 1)
    if topic_count > 1:
        length, position = _uvarint_of_part(body, position)
        partition_count, _ = _uvarint_of_part(body, position + _skipped(length))
        check_partitions(partition_count - 1)
    return True


def _uvarint_of_part(body: memoryview, position: int) -> tuple[int, int]:
    """More of the request may still arrive: raises IndexError at its end, where read_uvarint would blame the client."""
    if position + _UVARINT_BYTES_MAX > len(body):
        raise IndexError
    return read_uvarint(body, position)


def _skipped(length: int) -> int:
    """How many bytes a compact string takes, given its encoded length (plus one)."""
    if length > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {length - 1} bytes (accepted: {STRING_BYTES_MAX})")
    return max(length - 1, 0)


def encode_produce_response(answers: Sequence[ProduceAnswer], version: int) -> bytes:
    """One entry per partition, partitions of one topic together, in the order first seen."""
    if len(answers) == 1 and answers[0].leader is None:
        (answer,) = answers
        write_head = topic_head if len(answer.topic) <= _NAME_CHARACTERS_MAX else _write_topic_head
        return (
            write_head(answer.topic, 1, 1, version)
            + _encode_answer(answer, version)
            + (b"\0" * 6 if version >= FLEXIBLE_FROM else b"\0" * 4)
        )
    by_topic: dict[str, list[ProduceAnswer]] = {}
    for answer in answers:
        by_topic.setdefault(answer.topic, []).append(answer)
    flexible = version >= FLEXIBLE_FROM
    parts: list[bytes] = []
    for topic, rows in by_topic.items():
        write_head = topic_head if len(topic) <= _NAME_CHARACTERS_MAX else _write_topic_head
        parts.append(write_head(topic, 0 if parts else len(by_topic), len(rows), version))
        parts.extend(_encode_answer(row, version) for row in rows)
        if flexible:
            parts.append(b"\0")
    parts.append(b"\0\0\0\0")  # throttle time
    if flexible:
        parts.append(write_endpoint_tags(row.leader for row in answers if row.leader is not None and version >= _LEADERS_FROM))
    return b"".join(parts) if by_topic else _count(0, flexible) + b"".join(parts)


def _write_topic_head(topic: str, topic_count: int, partition_count: int, version: int) -> bytes:
    """Topic count (if this topic is the first), name and partition count."""
    flexible = version >= FLEXIBLE_FROM
    head = _count(topic_count, flexible) if topic_count else b""
    return head + (write_compact_string(topic) if flexible else write_string(topic)) + _count(partition_count, flexible)


# The same bytes for every request of a producer. Only for valid names: others could have any length, and caching them is useless.
topic_head = lru_cache(maxsize=4096)(_write_topic_head)


def _count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else _INT32.pack(count)


def _encode_answer(row: ProduceAnswer, version: int) -> bytes:
    if version < 5:
        return _ANSWER.pack(row.partition_index, row.error, row.base_offset, row.log_append_time)
    head = _ANSWER_WITH_START.pack(row.partition_index, row.error, row.base_offset, row.log_append_time, row.log_start_offset)
    if version < 8:
        return head
    if version < FLEXIBLE_FROM:
        return head + b"\0\0\0\0" + write_string(_message(row))  # no record errors: a batch is accepted or rejected as a whole
    if row.message is None:
        return head + b"\x01\0\0"
    tags = b"\0" if row.leader is None or version < _LEADERS_FROM else write_leader_tags(row.leader, _LEADER_TAG)
    return head + b"\x01" + write_compact_string(_message(row)) + tags


def _message(row: ProduceAnswer) -> str | None:
    """Truncated: it may quote a name of any length."""
    return None if row.message is None else row.message[:_MESSAGE_CHARACTERS_MAX]


CONSTANT_BYTES_MAX = 512  # remembered per shape of a connection; client ids and topic names are shorter
_API = Struct(">HH")
_ACKS_TIMEOUT_COUNT = Struct(">hii")
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
