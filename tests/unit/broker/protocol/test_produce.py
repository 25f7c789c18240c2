"""The produce codec compared with another implementation (kio), in every version it supports.

The constant parts of a typical Produce request, and its answers: byte for byte those of the ordinary encoder.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import CONSTANT_START, PARTITIONS_MAX, read_request, response_head, write_uvarint
from logbus_broker.protocol.produce import (
    CONSTANT_BYTES_MAX,
    ProduceAnswer,
    ProduceShape,
    check_counts,
    encode_produce_response,
    parse_produce,
    shape_of,
    topic_head,
)

from tests.support.kio_messages import read_response
from tests.support.two_paths import produce_frame

VERSIONS = range(3, 13)


def request(version: int) -> bytes:
    message = request_class(ApiKey.PRODUCE)
    topic = message.TopicProduceData
    first = [topic.PartitionProduceData(index=0, records=b"records" * 40), topic.PartitionProduceData(index=3, records=None)]
    second = [topic.PartitionProduceData(index=1, records=b"x")]
    topics = [topic(name="first", partition_data=first), topic(name="second", partition_data=second)]
    return bytes(message(transactional_id=None, acks=-1, timeout_ms=1500, topic_data=topics).encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_reads_as_it_was_written(version: int) -> None:
    parsed = parse_produce(memoryview(request(version)), version)
    rows = [(p.topic, p.partition_index, p.records) for p in parsed.partitions]
    assert all(p.records is None or isinstance(p.records, memoryview) for p in parsed.partitions), "no copies"
    assert rows == [("first", 0, b"records" * 40), ("first", 3, None), ("second", 1, b"x")]
    assert (parsed.acks, parsed.timeout_ms, parsed.transactional_id) == (-1, 1500, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_surplus_is_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match="after its end"):
        parse_produce(memoryview(request(version) + b"\0"), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reads_back_in_another_implementation(version: int) -> None:
    answers = [
        ProduceAnswer("first", 0, base_offset=12, log_start_offset=3),
        ProduceAnswer("second", 1, error=2, message="its crc is wrong"),
        ProduceAnswer("first", 3, base_offset=0, log_start_offset=0),
    ]
    response = read_response(ApiKey.PRODUCE, version, encode_produce_response(answers, version))
    rows = {(t.name, p.index): p for t in response.responses for p in t.partition_responses}
    assert rows["first", 0].base_offset == 12
    assert rows["first", 3].error_code == 0
    assert rows["second", 1].error_code == 2
    if version >= 8:
        assert rows["second", 1].error_message == "its crc is wrong"


def body_with(version: int, topics: int, partitions: int, *, name: bytes = b"topic", rest: bytes = b"") -> bytes:
    """The start of a request that announces `topics` topics, with `partitions` partitions in the first; then `rest`."""
    if version >= 9:
        counts = write_uvarint(topics + 1), write_uvarint(len(name) + 1) + name + write_uvarint(partitions + 1)
        return b"\0" + b"\0\x01\0\0\0\0" + b"".join(counts) + rest
    counts = topics.to_bytes(4, "big"), len(name).to_bytes(2, "big") + name + partitions.to_bytes(4, "big")
    return b"\xff\xff" + b"\0\x01\0\0\0\0" + b"".join(counts) + rest


def empty_partitions(version: int, count: int) -> bytes:
    row = b"\0\0\0\0" + (b"\x01\0" if version >= 9 else b"\0\0\0\0")
    return row * count


@pytest.mark.parametrize("version", [8, 9])
def test_as_many_partitions_as_the_limit_pass_and_one_more_in_the_next_topic_does_not(version: int) -> None:
    end = b"\0\0" if version >= 9 else b""
    full = body_with(version, 1, PARTITIONS_MAX, rest=empty_partitions(version, PARTITIONS_MAX) + end)
    assert len(parse_produce(memoryview(full), version).partitions) == PARTITIONS_MAX
    second = b"\x02y\x02" if version >= 9 else b"\0\x01y\0\0\0\x01"
    rest = empty_partitions(version, PARTITIONS_MAX) + end[:1] + second + empty_partitions(version, 1) + end
    with pytest.raises(ProtocolError, match="10001 topics or partitions"):
        parse_produce(memoryview(body_with(version, 2, PARTITIONS_MAX, rest=rest)), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_beginning_of_a_request_is_enough_to_refuse_it(version: int) -> None:
    begun = body_with(version, 1, 5, rest=bytes(10))
    assert check_counts(memoryview(begun), version)
    assert not check_counts(memoryview(begun[:8]), version), "too little to know"
    for topics, partitions in ((PARTITIONS_MAX + 1, 1), (1, PARTITIONS_MAX + 1)):
        with pytest.raises(ProtocolError, match="accepted: 10000"):
            check_counts(memoryview(body_with(version, topics, partitions, rest=bytes(10))), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_beginning_of_a_good_request_is_never_refused(version: int) -> None:
    raw = request(version)
    seen = [check_counts(memoryview(raw[:cut]), version) for cut in range(len(raw) + 1)]
    assert seen == sorted(seen)
    assert seen[-1]


def test_a_compact_string_longer_than_kafkas_strings_is_refused_as_soon_as_its_length_is_here() -> None:
    with pytest.raises(ProtocolError, match="32767"):
        check_counts(memoryview(body_with(9, 1, 1, name=bytes(40_000))), 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_longest_names_are_echoed_and_the_longest_messages_cut_so_that_every_answer_can_be_written(version: int) -> None:
    name = "\u20ac" * 10_922  # 32,766 bytes
    answers = [ProduceAnswer(name, index, error=3, message=f"no partition {name}-{index}") for index in range(2)]
    for rows in (answers, answers[:1]):
        response = read_response(ApiKey.PRODUCE, version, encode_produce_response(rows, version))
        assert [topic.name for topic in response.responses] == [name]
        if version >= 8:
            message = response.responses[0].partition_responses[0].error_message
            assert message.startswith("no partition \u20ac")
            assert len(message) <= 300


def test_names_that_cannot_exist_are_not_remembered() -> None:
    before = topic_head.cache_info().currsize
    for number in range(20):
        encode_produce_response([ProduceAnswer(f"{number}" * 300, 0, error=3)], 9)
    assert topic_head.cache_info().currsize == before


SHAPED_VERSIONS = range(APIS[ApiKey.PRODUCE].first, APIS[ApiKey.PRODUCE].last + 1)
OFFSETS = st.integers(0, (1 << 63) - 1)


def shape(frame: bytes) -> ProduceShape | None:
    return shape_of(memoryview(frame)[4:])


@given(
    st.sampled_from(SHAPED_VERSIONS),
    st.text(min_size=1, max_size=249).filter(lambda name: len(name) <= 249),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.lists(st.tuples(st.integers(0, 1 << 30), OFFSETS, OFFSETS), min_size=1, max_size=200),
)
def test_answers_are_those_of_the_ordinary_encoder(
    version: int, topic: str, correlation_id: int, rows: list[tuple[int, int, int]]
) -> None:
    frame = produce_frame(version, correlation_id, [(topic.encode(), [(0, b"")])], client=b"me")
    found = shape(frame)
    if len(topic.encode()) > CONSTANT_BYTES_MAX - 40:
        return
    assert found is not None
    answers = [ProduceAnswer(topic, index, base_offset=base, log_start_offset=start) for index, base, start in rows]
    body = encode_produce_response(answers, version)
    expected = response_head(read_request(memoryview(frame)[4:]), len(body)) + body
    assert found.answer_all(correlation_id, rows) == expected
    if len(rows) == 1:
        assert found.answer(correlation_id, *rows[0]) == expected


@pytest.mark.parametrize("version", SHAPED_VERSIONS)
def test_a_usual_request_has_the_same_bytes_before_its_partitions(version: int) -> None:
    frames = [produce_frame(version, n, [(b"clicks", [(n, b"x" * n)])], acks=-1) for n in range(3)]
    found = [shape(frame) for frame in frames]
    assert all(one is not None and (one.topic, one.acks) == ("clicks", -1) for one in found)
    assert len({one.constant for one in found if one is not None}) == 1
    for one, frame in zip(found, frames, strict=True):
        assert one is not None
        assert frame.startswith(one.constant, CONSTANT_START)
        rest = frame[CONSTANT_START + len(one.constant) :]
        assert rest[:4] == b"\0\0\0\x01" if version < 9 else rest[:1] == b"\x02"


@pytest.mark.parametrize("version", SHAPED_VERSIONS)
def test_anything_else_has_no_shape(version: int) -> None:
    usual = [(b"clicks", [(0, b"x")])]
    for frame in (
        produce_frame(version, 1, usual, acks=2),
        produce_frame(version, 1, usual, transactional_id=b"t"),
        produce_frame(version, 1, [*usual, (b"others", [(0, b"x")])]),
        produce_frame(version, 1, []),
        produce_frame(version, 1, [(b"", [(0, b"x")])]),
        produce_frame(version, 1, [(b"c" * 250, [(0, b"x")])]),
        produce_frame(version, 1, [(b"\xff\xfe", [(0, b"x")])]),
        produce_frame(version, 1, usual, client=b"c" * CONSTANT_BYTES_MAX),
        produce_frame(version, 1, usual)[:20],
        produce_frame(2, 1, usual),
        produce_frame(13, 1, usual),
    ):
        assert shape(frame) is None
    if version >= 9:
        assert shape(produce_frame(version, 1, usual, tags=b"\x01\x00\x01x")) is None


@pytest.mark.parametrize("version", SHAPED_VERSIONS)
def test_a_request_that_is_cut_short_has_no_shape_or_its_own(version: int) -> None:
    frame = produce_frame(version, 1, [(b"clicks", [(0, b"x")])])
    whole = shape(frame)
    assert whole is not None
    for end in range(4, len(frame)):
        found = shape(frame[:end])
        assert found is None or found.constant == whole.constant
