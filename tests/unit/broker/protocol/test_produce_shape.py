"""The constant parts of a typical Produce request, and its answers: byte for byte those of the ordinary encoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.api import APIS, ApiKey
from broker.protocol.framing import CONSTANT_START, read_request, response_head
from broker.protocol.produce import ProduceAnswer, encode_produce_response
from broker.protocol.produce_shape import CONSTANT_BYTES_MAX, ProduceShape, shape_of
from tests.support.two_lanes import produce_frame

VERSIONS = range(APIS[ApiKey.PRODUCE].first, APIS[ApiKey.PRODUCE].last + 1)
OFFSETS = st.integers(0, (1 << 63) - 1)


def shape(frame: bytes) -> ProduceShape | None:
    return shape_of(memoryview(frame)[4:])


@given(
    st.sampled_from(VERSIONS),
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


@pytest.mark.parametrize("version", VERSIONS)
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


@pytest.mark.parametrize("version", VERSIONS)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_short_has_no_shape_or_its_own(version: int) -> None:
    frame = produce_frame(version, 1, [(b"clicks", [(0, b"x")])])
    whole = shape(frame)
    assert whole is not None
    for end in range(4, len(frame)):
        found = shape(frame[:end])
        assert found is None or found.constant == whole.constant
