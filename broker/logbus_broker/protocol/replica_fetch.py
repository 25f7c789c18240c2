"""Fetch version 17 between brokers, both sides of it, by hand: the follower's request and the leader's answer.

It is Kafka's Fetch, in Kafka's bytes: topics by id, incremental sessions (KIP-227), `cluster_id` and `replica_state` as tagged
fields of the request (KIP-903), `diverging_epoch` as one of the answer (KIP-595). Three tagged fields are our own, with numbers
far from Kafka's, which every other decoder skips:

    request, partition   flushed_offset   what the follower has on its disk; up to the fetch offset it has only written
    request, partition   is_impaired      no value: the follower's disk is full or does not answer, so it stores nothing
    answer, partition    wanted_offset    up to where a request at the leader waits for a flush: the follower flushes now

Why by hand: an idle or busy follower sends a thousand requests a second that name one or two partitions each, and records must
reach the socket without being copied. As in `fetch.py`, the answer's encoder returns the bytes before each partition's records,
and the caller puts a file slice after them. The parser of the answer returns records as views of its buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeVar

from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.framing import (
    check_partitions,
    read_compact_string,
    read_tags,
    read_topic_id,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_uvarint,
)

REPLICA_FETCH_VERSION = 17
NO_OFFSET = -1  # an offset that is not given
NO_SESSION = 0  # the session's id in a request that opens one
FIRST_SESSION_EPOCH = 0  # opens a session
FINAL_SESSION_EPOCH = -1  # closes it
_SESSION_EPOCH_MAX = 0x7FFFFFFF

_INT64 = Struct(">q")
_START = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id, session epoch
_PARTITION = Struct(">iiqiqi")  # index, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes
_INDEX = Struct(">i")
_REPLICA_STATE = Struct(">iq")  # id, epoch
_ANSWER_START = Struct(">ihi")  # throttle time, error, session id
_ANSWER = Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start offset
_DIVERGING = Struct(">iq")  # epoch, end offset

_TAG_CLUSTER_ID, _TAG_REPLICA_STATE, _TAG_DIVERGING_EPOCH, _TAG_OWN_OFFSET, _TAG_IMPAIRED = 0, 1, 0, 10_000, 10_001
_OWN_OFFSET_HEAD = write_uvarint(_TAG_OWN_OFFSET) + b"\x08"
_ONLY_OWN_OFFSET = b"\x01" + _OWN_OFFSET_HEAD  # a section of one tag: nearly every request
_IMPAIRED = write_uvarint(_TAG_IMPAIRED) + b"\0"
_DIVERGING_HEAD = b"\0\x0d"
# If the last tag of a request is `replica_state`, as in every request sent by a broker, it is this far from the end.
_REPLICA_STATE_BYTES = 15
_REPLICA_STATE_HEAD = b"\x01\x0d"
# One partition, with its flushed offset: a request up to the end of its topics; an answer up to its records' size.
_ONE_PARTITION = Struct(">iiibii B16sB iiqiqi 4sqB")
_ONE_ANSWER = Struct(">ihi B16sB ihqqq 5s")
_ONE = 2  # the compact encoding of a count of one
_NO_ABORTED = b"\0\xff\xff\xff\xff"  # no aborted transactions, and no preferred read replica
_NO_TAGS = b"\0\0\0"  # of the partition, of the topic, of the answer
_REQUEST_END_BYTES_MAX = 128


class ReplicaPartition(NamedTuple):
    """What a follower requests of one partition, and what it has. `leader_epoch` is that of the leader it follows."""

    topic_id: bytes
    partition_index: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int
    flushed_offset: int = NO_OFFSET
    is_impaired: bool = False


class ReplicaFetch(NamedTuple):
    """A follower's request. In a session, `partitions` are those that are new or have moved, `forgotten` those it drops."""

    replica_id: int
    replica_epoch: int
    cluster_id: str | None
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    session_id: int
    session_epoch: int
    partitions: Sequence[ReplicaPartition]
    forgotten: Sequence[tuple[bytes, int]] = ()


class ReplicaAnswer(NamedTuple):
    """One partition's answer, as the leader builds it; `size` bytes of records follow its encoded piece."""

    topic_id: bytes
    partition_index: int
    error: int
    visible_offset: int
    log_start_offset: int
    size: int = 0
    diverging_epoch: tuple[int, int] | None = None  # the epoch, and where it ends in the leader's log
    wanted_offset: int = NO_OFFSET


class ReplicaRecords(NamedTuple):
    """One partition's answer, as the follower parses it; `records` are a view of the parsed buffer."""

    topic_id: bytes
    partition_index: int
    error: int
    visible_offset: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    wanted_offset: int = NO_OFFSET


class ReplicaFetched(NamedTuple):
    """The whole answer. `error` applies to all of it; a session id of 0 means that there is no session, or no longer one."""

    error: int
    session_id: int
    partitions: list[ReplicaRecords]


def next_session_epoch(epoch: int) -> int:
    """The next session epoch: 0 opens a session, so it wraps around to 1."""
    return 1 if epoch == _SESSION_EPOCH_MAX else epoch + 1


# The request


def encode_replica_fetch(fetch: ReplicaFetch) -> bytes:
    """The body of a request. Partitions of one topic should be adjacent: each run of them repeats the topic id."""
    end = _request_end(fetch.cluster_id, fetch.replica_id, fetch.replica_epoch)
    if len(fetch.partitions) == 1 and not fetch.forgotten and _has_only_own_offset(fetch.partitions[0]):
        return _encode_one(fetch, fetch.partitions[0]) + b"\x01" + end
    out = bytearray(_START.pack(fetch.wait_ms_max, fetch.bytes_min, fetch.bytes_max, 0, fetch.session_id, fetch.session_epoch))
    runs = _runs(fetch.partitions)
    out += write_uvarint(len(runs) + 1)
    for run in runs:
        out += run[0].topic_id + write_uvarint(len(run) + 1)
        for part in run:
            out += _PARTITION.pack(*part[1:7])
            out += _partition_tags(part)
        out += b"\0"
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in fetch.forgotten:
        by_topic.setdefault(topic_id, []).append(index)
    out += write_uvarint(len(by_topic) + 1)
    for topic_id, indexes in by_topic.items():
        out += topic_id + write_uvarint(len(indexes) + 1) + b"".join(map(_INDEX.pack, indexes)) + b"\0"
    return bytes(out) + end


def _has_only_own_offset(part: ReplicaPartition) -> bool:
    return part.flushed_offset != NO_OFFSET and not part.is_impaired


def _partition_tags(part: ReplicaPartition) -> bytes:
    if _has_only_own_offset(part):
        return _ONLY_OWN_OFFSET + _INT64.pack(part.flushed_offset)
    has_offset = part.flushed_offset != NO_OFFSET
    tags = bytes((has_offset + part.is_impaired,))
    if has_offset:
        tags += _OWN_OFFSET_HEAD + _INT64.pack(part.flushed_offset)
    return tags + _IMPAIRED if part.is_impaired else tags


def _encode_one(fetch: ReplicaFetch, part: ReplicaPartition) -> bytes:
    return _ONE_PARTITION.pack(
        fetch.wait_ms_max,
        fetch.bytes_min,
        fetch.bytes_max,
        0,
        fetch.session_id,
        fetch.session_epoch,
        _ONE,
        part.topic_id,
        _ONE,
        *part[1:7],
        _ONLY_OWN_OFFSET,
        part.flushed_offset,
        0,
    )


@lru_cache(maxsize=64)
def _request_end(cluster_id: str | None, replica_id: int, replica_epoch: int) -> bytes:
    """What follows the forgotten topics."""
    out = b"\x01"  # no rack
    if cluster_id is None:
        out += b"\x01"
    else:
        text = write_compact_string(cluster_id)
        out += b"\x02\0" + write_uvarint(len(text)) + text
    return out + _REPLICA_STATE_HEAD + _REPLICA_STATE.pack(replica_id, replica_epoch) + b"\0"


def parse_replica_fetch(body: memoryview) -> ReplicaFetch | None:
    """Read a request of version 17; None if a consumer sent it, which costs one comparison near its end."""
    if bytes(body[-_REPLICA_STATE_BYTES : 2 - _REPLICA_STATE_BYTES]) != _REPLICA_STATE_HEAD:
        return None
    try:
        usual = _parse_one(body)
        if usual is not None:
            return usual
        fetch, position = _parse_request(body)
    except StructError as error:
        raise ProtocolError("a replica's Fetch request that ends too early") from error
    if position != len(body):
        raise ProtocolError(f"a replica's Fetch request with {len(body) - position} bytes after its end")
    return fetch if fetch.replica_id >= 0 else None


def _parse_one(body: memoryview) -> ReplicaFetch | None:
    """A request with one partition and no forgotten ones; None for anything else."""
    end = bytes(body[_ONE_PARTITION.size :])
    if not 0 < len(end) <= _REQUEST_END_BYTES_MAX:
        return None
    head = _ONE_PARTITION.unpack_from(body)
    wait_ms_max, bytes_min, bytes_max, _, session_id, session_epoch, topics, topic_id, count = head[:9]
    index, leader_epoch, offset, last_epoch, log_start, partition_bytes_max, tags, flushed, after = head[9:]
    if topics != _ONE or count != _ONE or tags != _ONLY_OWN_OFFSET or after:
        return None
    sender = _parse_end(end)
    if sender is None:
        return None
    cluster_id, replica_id, replica_epoch = sender
    only = ReplicaPartition(topic_id, index, leader_epoch, offset, last_epoch, log_start, partition_bytes_max, flushed)
    return ReplicaFetch(
        replica_id, replica_epoch, cluster_id, wait_ms_max, bytes_min, bytes_max, session_id, session_epoch, [only], []
    )


@lru_cache(maxsize=64)
def _parse_end(raw: bytes) -> tuple[str | None, int, int] | None:
    """A request's sender, from the bytes after its topics; None if there is anything else, or the sender is not a broker.
    Clients choose what is cached here, but not how much."""
    body = memoryview(raw)
    try:
        forgotten, position = _parse_forgotten(body, 0)
        sender, position = _parse_sender(body, position)
    except (StructError, ProtocolError):
        return None  # the general parser reports what is wrong
    return sender if not forgotten and position == len(raw) and sender[1] >= 0 else None


def _parse_request(body: memoryview) -> tuple[ReplicaFetch, int]:
    wait_ms_max, bytes_min, bytes_max, _, session_id, session_epoch = _START.unpack_from(body)
    partitions, position = _parse_partitions(body, _START.size)
    forgotten, position = _parse_forgotten(body, position)
    (cluster_id, replica_id, replica_epoch), position = _parse_sender(body, position)
    return (
        ReplicaFetch(
            replica_id,
            replica_epoch,
            cluster_id,
            wait_ms_max,
            bytes_min,
            bytes_max,
            session_id,
            session_epoch,
            partitions,
            forgotten,
        ),
        position,
    )


def _parse_sender(body: memoryview, position: int) -> tuple[tuple[str | None, int, int], int]:
    """Reads the rack, which is unused, and the tags: cluster id, broker id and broker epoch."""
    _, position = read_compact_string(body, position)
    cluster_id, replica_id, replica_epoch = None, -1, -1
    tags, position = read_tags(body, position)
    for tag, start, size in tags:
        if tag == _TAG_CLUSTER_ID:
            cluster_id, _ = read_compact_string(body[start : start + size], 0)
        elif tag == _TAG_REPLICA_STATE:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(body[start : start + size])
    return (cluster_id, replica_id, replica_epoch), position


def _parse_partitions(body: memoryview, position: int) -> tuple[list[ReplicaPartition], int]:
    partitions: list[ReplicaPartition] = []
    topic_count, position = _read_count(body, position)
    for _ in range(topic_count):
        topic_id, position = read_topic_id(body, position)
        count, position = _read_count(body, position, len(partitions))
        for _ in range(count):
            index, epoch, offset, last_epoch, log_start, bytes_max = _PARTITION.unpack_from(body, position)
            position += _PARTITION.size
            is_impaired = False
            if body[position : position + 4] == _ONLY_OWN_OFFSET:
                (flushed_offset,) = _INT64.unpack_from(body, position + 4)
                position += 12
            else:
                tags, position = read_tags(body, position)
                flushed_offset = _own_offset(body, tags)
                is_impaired = any(tag == _TAG_IMPAIRED for tag, _, _ in tags)
            partitions.append(
                ReplicaPartition(
                    topic_id, index, epoch, offset, last_epoch, log_start, bytes_max, flushed_offset, is_impaired=is_impaired
                )
            )
        position = skip_tags(body, position)
    return partitions, position


def _parse_forgotten(body: memoryview, position: int) -> tuple[list[tuple[bytes, int]], int]:
    forgotten: list[tuple[bytes, int]] = []
    topic_count, position = _read_count(body, position)
    for _ in range(topic_count):
        topic_id, position = read_topic_id(body, position)
        count, position = _read_count(body, position, len(forgotten))
        for _ in range(count):
            forgotten.append((topic_id, _INDEX.unpack_from(body, position)[0]))
            position += 4
        position = skip_tags(body, position)
    return forgotten, position


# The answer


def encode_replica_answer(answers: Sequence[ReplicaAnswer], *, session_id: int, error: int = 0) -> list[bytes]:
    """One piece of bytes before each partition's records, and a last one after them all: len(answers) + 1 pieces."""
    if len(answers) == 1:
        (row,) = answers
        head = _ONE_ANSWER.pack(
            0,
            error,
            session_id,
            _ONE,
            row.topic_id,
            _ONE,
            row.partition_index,
            row.error,
            row.visible_offset,
            row.visible_offset,
            row.log_start_offset,
            _NO_ABORTED,
        )
        return [head + write_uvarint(row.size + 1), _answer_tags(row) + b"\0\0"]
    runs = _runs(answers)
    pending = _ANSWER_START.pack(0, error, session_id) + write_uvarint(len(runs) + 1)
    pieces: list[bytes] = []
    for run in runs:
        pending += run[0].topic_id + write_uvarint(len(run) + 1)
        for row in run:
            visible = row.visible_offset
            pending += _ANSWER.pack(row.partition_index, row.error, visible, visible, row.log_start_offset)
            pieces.append(pending + _NO_ABORTED + write_uvarint(row.size + 1))
            pending = _answer_tags(row)
        pending += b"\0"
    return [*pieces, pending + b"\0"]


def _answer_tags(row: ReplicaAnswer) -> bytes:
    diverging, flush_offset = row.diverging_epoch, row.wanted_offset
    if diverging is None and flush_offset == NO_OFFSET:
        return b"\0"
    tags = bytes(((diverging is not None) + (flush_offset != NO_OFFSET),))
    if diverging is not None:
        tags += _DIVERGING_HEAD + _DIVERGING.pack(*diverging) + b"\0"
    if flush_offset != NO_OFFSET:
        tags += _OWN_OFFSET_HEAD + _INT64.pack(flush_offset)
    return tags


def parse_replica_answer(body: memoryview) -> ReplicaFetched:
    """Read an answer of version 17. Its records are not examined."""
    try:
        usual = _parse_one_answer(body)
        if usual is not None:
            return usual
        answer, position = _parse_answer(body)
    except StructError as error:
        raise ProtocolError("an answer to a replica's Fetch that ends too early") from error
    if position != len(body):
        raise ProtocolError(f"an answer to a replica's Fetch with {len(body) - position} bytes after its end")
    return answer


def _parse_one_answer(body: memoryview) -> ReplicaFetched | None:
    """An answer for one partition without tags; None for anything else."""
    if len(body) <= _ONE_ANSWER.size:
        return None
    _, error, session_id, topics, topic_id, count, index, code, visible, _, log_start, middle = _ONE_ANSWER.unpack_from(body)
    if topics != _ONE or count != _ONE or middle[0] > 1:
        return None
    size, position = read_uvarint(body, _ONE_ANSWER.size)
    end = position + max(size - 1, 0)
    if len(body) != end + len(_NO_TAGS) or body[end:] != _NO_TAGS:
        return None
    return ReplicaFetched(error, session_id, [ReplicaRecords(topic_id, index, code, visible, log_start, body[position:end])])


def _parse_answer(body: memoryview) -> tuple[ReplicaFetched, int]:
    _, error, session_id = _ANSWER_START.unpack_from(body)
    partitions: list[ReplicaRecords] = []
    topic_count, position = _read_count(body, _ANSWER_START.size)
    for _ in range(topic_count):
        topic_id, position = read_topic_id(body, position)
        count, position = _read_count(body, position, len(partitions))
        for _ in range(count):
            row, position = _parse_row(body, position, topic_id)
            partitions.append(row)
        position = skip_tags(body, position)
    return ReplicaFetched(error, session_id, partitions), skip_tags(body, position)


def _parse_row(body: memoryview, position: int, topic_id: bytes) -> tuple[ReplicaRecords, int]:
    index, error, visible, _, log_start = _ANSWER.unpack_from(body, position)
    position += _ANSWER.size
    aborted, position = read_uvarint(body, position)
    if aborted > 1:
        raise ProtocolError("an answer with aborted transactions, which no broker here has")
    size, position = read_uvarint(body, position + 4)
    end = position + max(size - 1, 0)
    if end > len(body):
        raise ProtocolError("records beyond the end of their answer")
    records = body[position:end]
    diverging_epoch, flush_offset = None, NO_OFFSET
    if end < len(body) and not body[end]:  # no tags: nearly every answer
        position = end + 1
    else:
        tags, position = read_tags(body, end)
        flush_offset = _own_offset(body, tags)
        for tag, start, length in tags:
            if tag == _TAG_DIVERGING_EPOCH:
                diverging_epoch = _DIVERGING.unpack_from(body[start : start + length])
    return ReplicaRecords(topic_id, index, error, visible, log_start, records, diverging_epoch, flush_offset), position


# Shared by both


Row = TypeVar("Row", ReplicaPartition, ReplicaAnswer)


def _runs(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows in their order, with adjacent rows of one topic grouped."""
    return [list(run) for _, run in groupby(rows, attrgetter("topic_id"))]


def _read_count(body: memoryview, position: int, before: int = 0) -> tuple[int, int]:
    count, position = read_uvarint(body, position)
    check_partitions(count - 1, before)
    return count - 1, position


def _own_offset(body: memoryview, tags: Iterable[tuple[int, int, int]]) -> int:
    for tag, start, size in tags:
        if tag == _TAG_OWN_OFFSET:
            offset: int = _INT64.unpack_from(body[start : start + size])[0]
            return offset
    return NO_OFFSET
