"""The hand-written fetch codec against another implementation (kio), for every version it offers."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from kio.serial import entity_reader, entity_writer

from broker.errors import ProtocolError
from broker.protocol.fetch import FetchAnswer, encode_fetch_response, parse_fetch

VERSIONS = range(4, 13)


def kio_request(version: int) -> bytes:
    kio = import_module(f"kio.schema.fetch.v{version}.request")
    extra = {"current_leader_epoch": 5} if version >= 9 else {}
    if version >= 5:
        extra["log_start_offset"] = -1
    partition = kio.FetchPartition(partition=2, fetch_offset=77, partition_max_bytes=4096, **extra)
    top = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()} if version >= 7 else {}
    from datetime import timedelta

    from kio.static.primitive import i32Timedelta

    request = kio.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(milliseconds=500)),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=(kio.FetchTopic(topic="clicks", partitions=(partition,)),),
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
    assert (part.topic, part.partition_index, part.fetch_offset, part.bytes_max) == ("clicks", 2, 77, 4096)
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
    answers = [
        FetchAnswer("clicks", 0, 0, 100, 5, 7),
        FetchAnswer("clicks", 1, 1, -1, -1, 0),
        FetchAnswer("views", 0, 0, 9, 0, 0),
    ]
    records = [b"records", b"", b""]
    pieces = encode_fetch_response(answers, version, read_committed=read_committed)
    assert len(pieces) == len(answers) + 1
    raw = b"".join(piece + body for piece, body in zip(pieces, [*records, b""], strict=True))
    response, size = entity_reader(kio.FetchResponse)(memoryview(raw), 0)
    assert size == len(raw)
    rows = [
        (t.topic, p.partition_index, p.error_code, p.high_watermark, bytes(p.records or b""))
        for t in response.responses
        for p in t.partitions
    ]
    assert rows == [("clicks", 0, 0, 100, b"records"), ("clicks", 1, 1, -1, b""), ("views", 0, 0, 9, b"")]


def test_an_error_for_the_whole_request_stands_at_the_top() -> None:
    kio = import_module("kio.schema.fetch.v12.response")
    raw = b"".join(encode_fetch_response([], 12, error=70))
    response, size = entity_reader(kio.FetchResponse)(memoryview(raw), 0)
    assert (size, response.error_code, response.session_id, response.responses) == (len(raw), 70, 0, ())
