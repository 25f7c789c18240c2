"""Produce, versions 3 to 12, by hand.

Why by hand: a general codec copies the records and costs a multiple of everything else on the path. Here the records stay views
of the connection's buffer, and parsing takes one to three microseconds whatever their size. From version 9 on the encoding is
flexible (compact lengths, tags); its typical shape, one batch for one partition and no tags, is read straight through: everything
before the records is the same from one request of a producer to the next, so it is looked up in a cache. Versions 10 to 12 have
the same bytes: 10 may name another leader in tagged fields of the answer (leader_hints.py), 11 and 12 are about transactions.

Counts that are too high are rejected before anything is allocated for them. Names are echoed as received, whatever their length,
but only valid topic names are cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from broker.errors import ProtocolError
from broker.protocol.leader_hints import CurrentLeader, write_endpoint_tags, write_leader_tags
from broker.protocol.primitives import (
    STRING_BYTES_MAX,
    check_partitions,
    read_compact_string,
    read_string,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = 9
LEADERS_FROM = 10  # an error may name the current leader
_LEADER_TAG = 0
MESSAGE_CHARACTERS_MAX = 300  # of an error message: enough for a sentence, even one that quotes what a client sent
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
    """Read a request; every record set stays a view of `body`."""
    try:
        if version >= FLEXIBLE_FROM:
            usual = _parse_usual(body)
            if usual is not None:
                return usual
            request, position = _parse_flexible(body)
        else:
            request, position = _parse_classic(body)
    except (StructError, IndexError) as error:
        raise ProtocolError("a Produce request that ends too early") from error
    if position != len(body):
        raise ProtocolError(f"a Produce request with {len(body) - position} bytes behind its end")
    return request


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


def _parse_classic(body: memoryview) -> tuple[ProduceRequest, int]:
    size = len(body)
    transactional_id, position = read_string(body, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    (topic_count,) = _INT32.unpack_from(body, position + 6)
    if topic_count > 1:  # mostly one topic and one partition, and a call costs more than both comparisons
        check_partitions(topic_count)
    position += 10
    partitions: list[ProducePartition] = []
    for _ in range(topic_count):
        topic, position = read_string(body, position)
        (partition_count,) = _INT32.unpack_from(body, position)
        if partition_count > 1 or partitions:
            check_partitions(partition_count, len(partitions))
        position += 4
        for _ in range(partition_count):
            index, length = _INT32_PAIR.unpack_from(body, position)
            position += 8
            end = position + max(length, 0)
            if end > size or length < -1:
                raise ProtocolError("a record set longer than its request")
            partitions.append(ProducePartition(topic or "", index, None if length < 0 else body[position:end]))
            position = end
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions), position


def _parse_usual(body: memoryview) -> ProduceRequest | None:
    """One batch for one partition, no transaction, no tags; None for anything else, well-formed or not."""
    # It follows: 1 byte transactional id, 2 acks, 4 timeout, 1 topic count, the name and its length, 1 partition count, 4 index.
    length_at = body[8] + 13
    head = _usual_head(bytes(body[:length_at]))
    if head is None:
        return None
    acks, timeout_ms, topic, index = head
    length, start = read_uvarint(body, length_at)
    end = start + length - 1
    if not length or len(body) != end + 3 or body[end:] != _NO_TAGS:
        return None
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
    except UnicodeDecodeError as error:
        raise ProtocolError("a topic name that is not UTF-8") from error


def _parse_flexible(body: memoryview) -> tuple[ProduceRequest, int]:
    """Empty tag sections are skipped inline: nearly all are empty, and a call would cost more."""
    size = len(body)
    transactional_id, position = (None, 1) if body[0] == 0 else read_compact_string(body, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    topic_count, position = read_uvarint(body, position + 6)
    if topic_count > 2:
        check_partitions(topic_count - 1)
    partitions: list[ProducePartition] = []
    for _ in range(topic_count - 1):
        topic, position = read_compact_string(body, position)
        partition_count, position = read_uvarint(body, position)
        if partition_count > 2 or partitions:
            check_partitions(partition_count - 1, len(partitions))
        for _ in range(partition_count - 1):
            (index,) = _INT32.unpack_from(body, position)
            length, position = read_uvarint(body, position + 4)
            end = position + (length - 1 if length else 0)
            if end > size:
                raise ProtocolError("a record set longer than its request")
            partitions.append(ProducePartition(topic or "", index, body[position:end] if length else None))
            position = skip_tags(body, end) if body[end] else end + 1
        position = skip_tags(body, position) if body[position] else position + 1
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions), skip_tags(body, position)


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
        parts.append(write_endpoint_tags(row.leader for row in answers if row.leader is not None and version >= LEADERS_FROM))
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
    tags = b"\0" if row.leader is None or version < LEADERS_FROM else write_leader_tags(row.leader, _LEADER_TAG)
    return head + b"\x01" + write_compact_string(_message(row)) + tags


def _message(row: ProduceAnswer) -> str | None:
    """Truncated: it may quote a name of any length."""
    return None if row.message is None else row.message[:MESSAGE_CHARACTERS_MAX]
