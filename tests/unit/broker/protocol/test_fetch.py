"""The fetch codec compared with another implementation (kio), in every version it supports."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.fetch import FetchAnswer, encode_fetch_response, parse_fetch
from logbus_broker.protocol.framing import PARTITIONS_MAX

from tests.support.kio_messages import read_response

VERSIONS = range(4, 18)
CLICKS, VIEWS = uuid.UUID(int=7 << 100), uuid.UUID(int=9)


def named(version: int, topic: uuid.UUID, name: str) -> dict[str, Any]:
    """How kio names a topic."""
    return {"topic_id": topic} if version >= 13 else {"topic": name}


def key(version: int, topic: uuid.UUID, name: str) -> str | bytes:
    """How our codec names a topic."""
    return topic.bytes if version >= 13 else name


def request(version: int) -> bytes:
    message = request_class(ApiKey.FETCH)
    part = message.FetchTopic.FetchPartition(partition=2, current_leader_epoch=5, fetch_offset=77, partition_max_bytes=4096)
    forgotten = message.ForgottenTopic(partitions=[1, 2], **named(version, VIEWS, "views"))
    topics = [message.FetchTopic(partitions=[part], **named(version, CLICKS, "clicks"))]
    values = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1, "topics": topics}
    return bytes(message(forgotten_topics_data=[forgotten], **values).encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_reads_as_it_was_written(version: int) -> None:
    fetch = parse_fetch(memoryview(request(version)), version)
    (part,) = fetch.partitions
    assert (fetch.wait_ms_max, fetch.bytes_min, fetch.bytes_max, fetch.read_committed) == (500, 1, 1 << 20, True)
    assert (part.topic, part.partition_index, part.fetch_offset, part.bytes_max) == (key(version, CLICKS, "clicks"), 2, 77, 4096)
    assert part.leader_epoch == (5 if version >= 9 else -1)


@pytest.mark.parametrize("read_committed", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_in_another_implementation(version: int, read_committed: bool) -> None:
    clicks, views = key(version, CLICKS, "clicks"), key(version, VIEWS, "views")
    answers = [FetchAnswer(clicks, 0, 0, 100, 5, 7), FetchAnswer(clicks, 1, 1, -1, -1, 0), FetchAnswer(views, 0, 0, 9, 0, 0)]
    records = [b"records", b"", b""]
    pieces = encode_fetch_response(answers, version, read_committed=read_committed)
    assert len(pieces) == len(answers) + 1
    raw = b"".join(piece + body for piece, body in zip(pieces, [*records, b""], strict=True))
    response = read_response(ApiKey.FETCH, version, raw)
    rows = [
        (t.topic_id if version >= 13 else t.topic, p.partition_index, p.error_code, p.high_watermark, bytes(p.records or b""))
        for t in response.responses
        for p in t.partitions
    ]
    clicks, views = next(iter(named(version, CLICKS, "clicks").values())), next(iter(named(version, VIEWS, "views").values()))
    assert rows == [(clicks, 0, 0, 100, b"records"), (clicks, 1, 1, -1, b""), (views, 0, 0, 9, b"")]


@pytest.mark.parametrize("version", VERSIONS[3:])
def test_an_error_for_the_whole_request_stands_at_the_top(version: int) -> None:
    response = read_response(ApiKey.FETCH, version, b"".join(encode_fetch_response([], version, error=70)))
    assert (response.error_code, response.session_id, response.responses) == (70, 0, ())


FIRST = bytes(17)  # of version 4: replica id, max wait, min bytes, max bytes, isolation level


def number(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


def test_more_partitions_than_a_broker_has_are_refused() -> None:
    body = FIRST + number(2) + (b"\0\x01x" + number(PARTITIONS_MAX) + bytes(16) * PARTITIONS_MAX)
    assert len(parse_fetch(memoryview(body + b"\0\x01y" + number(0)), 4).partitions) == PARTITIONS_MAX
    with pytest.raises(ProtocolError, match="accepted: 10000"):
        parse_fetch(memoryview(body + b"\0\x01y" + number(1) + bytes(16)), 4)
