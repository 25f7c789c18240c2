"""The hand-written produce codec against another implementation (kio), for every version it offers."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

from broker.errors import ProtocolError
from broker.protocol.produce import ProduceAnswer, encode_produce_response, parse_produce

VERSIONS = range(3, 13)


def kio_request(version: int) -> bytes:
    kio = import_module(f"kio.schema.produce.v{version}.request")
    topics = tuple(
        kio.TopicProduceData(
            name=name,
            partition_data=tuple(kio.PartitionProduceData(index=i32(index), records=records) for index, records in rows),
        )
        for name, rows in (("first", [(0, b"records" * 40), (3, None)]), ("second", [(1, b"x")]))
    )
    from datetime import timedelta

    request = kio.ProduceRequest(
        transactional_id=None, acks=i16(-1), timeout=i32Timedelta.parse(timedelta(milliseconds=1500)), topic_data=topics
    )
    out = io.BytesIO()
    entity_writer(kio.ProduceRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_reads_as_it_was_written(version: int) -> None:
    parsed = parse_produce(memoryview(kio_request(version)), version)
    rows = [(p.topic, p.partition_index, None if p.records is None else bytes(p.records)) for p in parsed.partitions]
    assert rows == [("first", 0, b"records" * 40), ("first", 3, None), ("second", 1, b"x")]
    assert (parsed.acks, parsed.timeout_ms, parsed.transactional_id) == (-1, 1500, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_and_every_surplus_is_refused(version: int) -> None:
    raw = kio_request(version)
    for cut in range(len(raw)):
        with pytest.raises(ProtocolError):
            parse_produce(memoryview(raw[:cut]), version)
    with pytest.raises(ProtocolError, match="behind its end"):
        parse_produce(memoryview(raw + b"\0"), version)


def test_an_array_count_that_lies_allocates_nothing() -> None:
    with pytest.raises(ProtocolError):
        parse_produce(memoryview(b"\xff\xff" + b"\0\x01" + b"\0\0\0\0" + b"\x7f\xff\xff\xff"), 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_in_another_implementation(version: int) -> None:
    kio = import_module(f"kio.schema.produce.v{version}.response")
    answers = [
        ProduceAnswer("first", 0, base_offset=12, log_start_offset=3),
        ProduceAnswer("second", 1, error=2, message="its crc is wrong"),
        ProduceAnswer("first", 3, base_offset=0, log_start_offset=0),
    ]
    raw = encode_produce_response(answers, version)
    response, size = entity_reader(kio.ProduceResponse)(memoryview(raw), 0)
    assert size == len(raw)
    rows = {(t.name, p.index): p for t in response.responses for p in t.partition_responses}
    assert rows["first", 0].base_offset == i64(12)
    assert rows["first", 3].error_code == 0
    assert rows["second", 1].error_code == 2
    if version >= 8:
        assert rows["second", 1].error_message == "its crc is wrong"
