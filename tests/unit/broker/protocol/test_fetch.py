"""The fetch codec compared with another implementation (kio), in every version it supports."""

from __future__ import annotations

import io
import uuid
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from broker.errors import ProtocolError
from broker.protocol.fetch import FetchAnswer, encode_fetch_response, parse_fetch
from broker.protocol.primitives import PARTITIONS_MAX

VERSIONS = range(4, 18)
CLICKS, VIEWS = uuid.UUID(int=7 << 100), uuid.UUID(int=9)


def named(version: int, topic: uuid.UUID, name: str) -> dict[str, Any]:
    """How kio names a topic."""
    return {"topic_id": topic} if version >= 13 else {"topic": name}


def key(version: int, topic: uuid.UUID, name: str) -> str | bytes:
    """How our codec names a topic."""
    return topic.bytes if version >= 13 else name


def kio_request(version: int) -> bytes:
    kio = import_module(f"kio.schema.fetch.v{version}.request")
    extra = {"current_leader_epoch": 5} if version >= 9 else {}
    if version >= 5:
        extra["log_start_offset"] = -1
    if version >= 17:
        extra["replica_directory_id"] = uuid.UUID(int=1)
    partition = kio.FetchPartition(partition=2, fetch_offset=77, partition_max_bytes=4096, **extra)
    top: dict[str, Any] = {}
    if version >= 7:
        forgotten = kio.ForgottenTopic(partitions=(1, 2), **named(version, VIEWS, "views"))
        top |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": (forgotten,)}
    top |= {"replica_id": -1} if version < 15 else {"replica_state": kio.ReplicaState(replica_id=3, replica_epoch=1)}
    request = kio.FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=500)),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=(kio.FetchTopic(partitions=(partition,), **named(version, CLICKS, "clicks")),),
        **top,
    )
    out = io.BytesIO()
    entity_writer(kio.FetchRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_reads_as_it_was_written(version: int) -> None:
    fetch = parse_fetch(memoryview(kio_request(version)), version)
    (part,) = fetch.partitions
    assert (fetch.wait_ms_max, fetch.bytes_min, fetch.bytes_max, fetch.read_committed) == (500, 1, 1 << 20, True)
    assert (part.topic, part.partition_index, part.fetch_offset, part.bytes_max) == (key(version, CLICKS, "clicks"), 2, 77, 4096)
    assert part.leader_epoch == (5 if version >= 9 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_refused(version: int) -> None:
    raw = kio_request(version)
    for cut in range(len(raw)):
        with pytest.raises(ProtocolError):
            parse_fetch(memoryview(raw[:cut]), version)


@pytest.mark.parametrize("read_committed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_in_another_implementation(version: int, read_committed: bool) -> None:
    kio = import_module(f"kio.schema.fetch.v{version}.response")
    clicks, views = key(version, CLICKS, "clicks"), key(version, VIEWS, "views")
    answers = [FetchAnswer(clicks, 0, 0, 100, 5, 7), FetchAnswer(clicks, 1, 1, -1, -1, 0), FetchAnswer(views, 0, 0, 9, 0, 0)]
    records = [b"records", b"", b""]
    pieces = encode_fetch_response(answers, version, read_committed=read_committed)
    assert len(pieces) == len(answers) + 1
    raw = b"".join(piece + body for piece, body in zip(pieces, [*records, b""], strict=True))
    response, size = entity_reader(kio.FetchResponse)(memoryview(raw), 0)
    assert size == len(raw)
    rows = [
        (t.topic_id if version >= 13 else t.topic, p.partition_index, p.error_code, p.high_watermark, bytes(p.records or b""))
        for t in response.responses
        for p in t.partitions
    ]
    clicks, views = next(iter(named(version, CLICKS, "clicks").values())), next(iter(named(version, VIEWS, "views").values()))
    assert rows == [(clicks, 0, 0, 100, b"records"), (clicks, 1, 1, -1, b""), (views, 0, 0, 9, b"")]


@pytest.mark.parametrize("version", VERSIONS[3:])
def test_an_error_for_the_whole_request_stands_at_the_top(version: int) -> None:
    kio = import_module(f"kio.schema.fetch.v{version}.response")
    raw = b"".join(encode_fetch_response([], version, error=70))
    response, size = entity_reader(kio.FetchResponse)(memoryview(raw), 0)
    assert (size, response.error_code, response.session_id, response.responses) == (len(raw), 70, 0, ())


FIRST = bytes(17)  # of version 4: replica id, max wait, min bytes, max bytes, isolation level


def number(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


def test_more_partitions_than_a_broker_has_are_refused() -> None:
    body = FIRST + number(2) + (b"\0\x01x" + number(PARTITIONS_MAX) + bytes(16) * PARTITIONS_MAX)
    assert len(parse_fetch(memoryview(body + b"\0\x01y" + number(0)), 4).partitions) == PARTITIONS_MAX
    with pytest.raises(ProtocolError, match="accepted: 10000"):
        parse_fetch(memoryview(body + b"\0\x01y" + number(1) + bytes(16)), 4)
