"""Fetch, versions 4 to 17, by hand.

Why by hand: the response is a header followed by bytes that never enter this process. The encoder therefore returns a small
header as bytes for each partition, and the caller puts the file slice after it, to be sent by sendfile. It takes one microsecond
for one partition.

From version 13 on, a topic is identified by the 16 bytes of its id instead of its name: `topic` is then those bytes, in the
request and in the answer, and costs no more than a name. From 15 on, the replica id is a tagged field that only followers send.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from broker.errors import ProtocolError
from broker.protocol.leader_hints import CurrentLeader, write_endpoint_tags, write_leader_tags
from broker.protocol.primitives import (
    check_partitions,
    read_compact_string,
    read_string,
    read_topic_id,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
RACK_FROM = 11  # the consumer's rack, and in the answer the preferred read replica
REPLICA_TAGGED_FROM = 15
_ENDPOINTS_FROM = 16
_LEADER_TAG = 1
_INT32 = Struct(">i")
_START = Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_START_V15 = Struct(">iiib")  # ... without replica id
_SESSION = Struct(">ii")
_PARTITION_V4 = Struct(">iqi")  # index, fetch offset, max bytes
_PARTITION_V5 = Struct(">iqqi")  # ... log start offset before max bytes
_PARTITION_V9 = Struct(">iiqqi")  # ... leader epoch after index
_PARTITION_V12 = Struct(">iiqiqi")  # ... last fetched epoch after fetch offset
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
    try:
        request, position = _parse(body, version)
    except StructError as error:
        raise ProtocolError("a Fetch request that ends too early") from error
    if position != len(body):
        raise ProtocolError(f"a Fetch request with {len(body) - position} bytes behind its end")
    return request


def _parse(body: memoryview, version: int) -> tuple[FetchRequest, int]:
    flexible = version >= FLEXIBLE_FROM
    if version < REPLICA_TAGGED_FROM:
        _, wait_ms_max, bytes_min, bytes_max, isolation = _START.unpack_from(body)
        position = _START.size
    else:
        wait_ms_max, bytes_min, bytes_max, isolation = _START_V15.unpack_from(body)
        position = _START_V15.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(body, position)
        position += 8
    partitions, position = _parse_topics(body, position, version, flexible)
    if version >= 7:
        position = _skip_forgotten(body, position, version)
    if version >= RACK_FROM:
        _, position = (read_compact_string if flexible else read_string)(body, position)
    if flexible:
        position = skip_tags(body, position)
    return FetchRequest(wait_ms_max, bytes_min, bytes_max, isolation == 1, session_id, session_epoch, partitions), position


def _read_topic(body: memoryview, position: int, version: int) -> tuple[str | bytes, int]:
    if version >= TOPIC_IDS_FROM:
        return read_topic_id(body, position)
    topic, position = (read_compact_string if version >= FLEXIBLE_FROM else read_string)(body, position)
    return topic or "", position


def _read_count(body: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = read_uvarint(body, position)
        return count - 1, position
    return _INT32.unpack_from(body, position)[0], position + 4


def _parse_topics(body: memoryview, position: int, version: int, flexible: bool) -> tuple[list[FetchPartition], int]:
    partitions: list[FetchPartition] = []
    topic_count, position = _read_count(body, position, flexible)
    check_partitions(topic_count)
    for _ in range(topic_count):
        topic, position = _read_topic(body, position, version)
        partition_count, position = _read_count(body, position, flexible)
        check_partitions(partition_count, len(partitions))
        for _ in range(partition_count):
            partition, position = _parse_partition(body, position, version, topic)
            partitions.append(partition)
            if flexible:
                position = skip_tags(body, position)
        if flexible:
            position = skip_tags(body, position)
    return partitions, position


def _parse_partition(body: memoryview, position: int, version: int, topic: str | bytes) -> tuple[FetchPartition, int]:
    epoch = -1
    if version >= 12:
        index, epoch, offset, _, _, size = _PARTITION_V12.unpack_from(body, position)
        return FetchPartition(topic, index, offset, size, epoch), position + _PARTITION_V12.size
    if version >= 9:
        index, epoch, offset, _, size = _PARTITION_V9.unpack_from(body, position)
        return FetchPartition(topic, index, offset, size, epoch), position + _PARTITION_V9.size
    if version >= 5:
        index, offset, _, size = _PARTITION_V5.unpack_from(body, position)
        return FetchPartition(topic, index, offset, size), position + _PARTITION_V5.size
    index, offset, size = _PARTITION_V4.unpack_from(body, position)
    return FetchPartition(topic, index, offset, size), position + _PARTITION_V4.size


def _skip_forgotten(body: memoryview, position: int, version: int) -> int:
    flexible = version >= FLEXIBLE_FROM
    count, position = _read_count(body, position, flexible)
    check_partitions(count)
    total = 0
    for _ in range(count):
        _, position = _read_topic(body, position, version)
        partitions, position = _read_count(body, position, flexible)
        check_partitions(partitions, total)
        total += max(partitions, 0)
        position += 4 * max(partitions, 0)
        if position > len(body):
            raise ProtocolError("a list of forgotten partitions longer than its request")
        if flexible:
            position = skip_tags(body, position)
    return position


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
    replica = b"\xff\xff\xff\xff" if version >= RACK_FROM else b""
    return head + aborted + replica + _INT32.pack(row.size)
