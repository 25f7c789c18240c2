"""A replica's Fetch compared with another implementation (kio), with our own decoder for consumers, and with itself."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.fetch.v17 import request as kio_request
from kio.static.primitive import i32Timedelta
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol import replica_fetch
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.fetch import parse_fetch
from logbus_broker.protocol.framing import PARTITIONS_MAX
from logbus_broker.protocol.replica_fetch import (
    NO_OFFSET,
    REPLICA_FETCH_VERSION,
    ReplicaAnswer,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaPartition,
    encode_replica_answer,
    encode_replica_fetch,
    next_session_epoch,
    parse_replica_answer,
    parse_replica_fetch,
)

from tests.support.kio_messages import read_response, written

CLICKS, VIEWS = uuid.UUID(int=7 << 100), uuid.UUID(int=9)

FETCH = ReplicaFetch(
    replica_id=3,
    replica_epoch=8,
    cluster_id="aCluster",
    wait_ms_max=500,
    bytes_min=1,
    bytes_max=1 << 20,
    session_id=12,
    session_epoch=4,
    partitions=[
        ReplicaPartition(CLICKS.bytes, 0, 5, 700, 4, 10, 1 << 20, 650),
        ReplicaPartition(CLICKS.bytes, 1, 6, 0, -1, 0, 1 << 20),
        ReplicaPartition(VIEWS.bytes, 2, 7, 9, 7, 0, 1 << 19, 9),
    ],
    forgotten=[(VIEWS.bytes, 5), (CLICKS.bytes, 8), (VIEWS.bytes, 6)],
)

ANSWERS = [
    ReplicaAnswer(CLICKS.bytes, 0, 0, 640, 10, 7, wanted_offset=690),
    ReplicaAnswer(CLICKS.bytes, 1, 0, 640, 10, diverging_epoch=(3, 55)),
    ReplicaAnswer(VIEWS.bytes, 2, 6, -1, -1),
    ReplicaAnswer(VIEWS.bytes, 3, 0, 1, 0, diverging_epoch=(-1, 0), wanted_offset=2),
]
RECORDS = [b"records", b"", b"", b""]


def answer_bytes(answers: list[ReplicaAnswer], records: list[bytes], **top: int) -> bytes:
    pieces = encode_replica_answer(answers, **{"session_id": 12, **top})
    assert len(pieces) == len(answers) + 1
    return b"".join(piece + body for piece, body in zip(pieces, [*records, b""], strict=True))


def without_own_tags(fetch: ReplicaFetch) -> ReplicaFetch:
    return fetch._replace(partitions=[part._replace(flushed_offset=NO_OFFSET) for part in fetch.partitions])


def kio_fetch() -> Any:
    """FETCH without our own tags, as a kio object."""

    def parts(topic: uuid.UUID) -> tuple[Any, ...]:
        return tuple(
            kio_request.FetchPartition(
                partition=part.partition_index,
                current_leader_epoch=part.leader_epoch,
                fetch_offset=part.fetch_offset,
                last_fetched_epoch=part.last_fetched_epoch,
                log_start_offset=part.log_start_offset,
                partition_max_bytes=part.bytes_max,
            )
            for part in FETCH.partitions
            if part.topic_id == topic.bytes
        )

    return kio_request.FetchRequest(
        cluster_id="aCluster",
        replica_state=kio_request.ReplicaState(replica_id=3, replica_epoch=8),
        max_wait=i32Timedelta.parse(timedelta(milliseconds=500)),
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=12,
        session_epoch=4,
        topics=tuple(kio_request.FetchTopic(topic_id=topic, partitions=parts(topic)) for topic in (CLICKS, VIEWS)),
        forgotten_topics_data=(
            kio_request.ForgottenTopic(topic_id=VIEWS, partitions=(5, 6)),
            kio_request.ForgottenTopic(topic_id=CLICKS, partitions=(8,)),
        ),
    )


def test_a_request_without_our_tags_is_kafkas_byte_for_byte() -> None:
    assert encode_replica_fetch(without_own_tags(FETCH)) == written(kio_fetch())


def test_a_request_of_another_implementation_is_read() -> None:
    fetch = parse_replica_fetch(memoryview(written(kio_fetch())))
    in_order = [(VIEWS.bytes, 5), (VIEWS.bytes, 6), (CLICKS.bytes, 8)]
    assert fetch == without_own_tags(FETCH)._replace(forgotten=in_order)


def test_a_request_costs_eleven_bytes_for_each_flushed_offset_and_no_other() -> None:
    numbered = sum(part.flushed_offset != NO_OFFSET for part in FETCH.partitions)
    # An empty tag section takes one byte; our tag adds its number (2), its size (1) and the offset (8).
    assert len(encode_replica_fetch(FETCH)) - len(encode_replica_fetch(without_own_tags(FETCH))) == 11 * numbered


def test_decoders_of_consumers_skip_our_tags() -> None:
    fetch = parse_fetch(memoryview(encode_replica_fetch(FETCH)), 17)
    assert [(part.topic, part.partition_index, part.fetch_offset, part.leader_epoch) for part in fetch.partitions] == [
        (CLICKS.bytes, 0, 700, 5),
        (CLICKS.bytes, 1, 0, 6),
        (VIEWS.bytes, 2, 9, 7),
    ]


def test_a_request_with_another_implementations_tags_is_read() -> None:
    message = kio_fetch()
    part = kio_request.FetchPartition(
        partition=0, fetch_offset=3, partition_max_bytes=9, replica_directory_id=uuid.UUID(int=77), log_start_offset=0
    )
    message = kio_request.FetchRequest(
        **{name: getattr(message, name) for name in ("replica_state", "max_wait", "min_bytes", "forgotten_topics_data")},
        topics=(kio_request.FetchTopic(topic_id=VIEWS, partitions=(part,)),),
    )
    fetch = parse_replica_fetch(memoryview(written(message)))
    assert fetch is not None
    assert list(fetch.partitions) == [ReplicaPartition(VIEWS.bytes, 0, -1, 3, -1, 0, 9)]
    assert fetch.cluster_id is None


def test_a_consumers_request_is_told_from_a_followers() -> None:
    message = kio_fetch()
    names = ("max_wait", "min_bytes", "topics", "forgotten_topics_data")
    consumer = kio_request.FetchRequest(**{name: getattr(message, name) for name in names})
    assert parse_replica_fetch(memoryview(written(consumer))) is None
    looks_alike = kio_request.FetchRequest(
        **{name: getattr(message, name) for name in names},
        replica_state=kio_request.ReplicaState(replica_id=-1, replica_epoch=5),
    )
    assert parse_replica_fetch(memoryview(written(looks_alike))) is None


def test_every_cut_of_a_request_is_refused_or_no_followers() -> None:
    raw = encode_replica_fetch(FETCH)
    for cut in range(len(raw)):
        try:
            assert parse_replica_fetch(memoryview(raw[:cut])) is None
        except ProtocolError:
            continue


def test_every_cut_of_an_answer_is_refused() -> None:
    raw = answer_bytes(ANSWERS, RECORDS)
    for cut in range(len(raw)):
        with pytest.raises(ProtocolError):
            parse_replica_answer(memoryview(raw[:cut]))


def test_an_answer_without_our_tags_reads_in_another_implementation() -> None:
    raw = answer_bytes([row._replace(wanted_offset=NO_OFFSET) for row in ANSWERS], RECORDS)
    response = read_response(ApiKey.FETCH, REPLICA_FETCH_VERSION, raw)
    assert (response.error_code, response.session_id) == (0, 12)
    rows = [
        (topic.topic_id, part.partition_index, part.error_code, part.high_watermark, part.log_start_offset, bytes(part.records))
        for topic in response.responses
        for part in topic.partitions
    ]
    assert rows == [
        (CLICKS, 0, 0, 640, 10, b"records"),
        (CLICKS, 1, 0, 640, 10, b""),
        (VIEWS, 2, 6, -1, -1, b""),
        (VIEWS, 3, 0, 1, 0, b""),
    ]
    diverging = [part.diverging_epoch for topic in response.responses for part in topic.partitions]
    assert [(found.epoch, found.end_offset) for found in diverging] == [(-1, -1), (3, 55), (-1, -1), (-1, 0)]
    again = written(response)
    assert parse_replica_answer(memoryview(again)).partitions[1].diverging_epoch == (3, 55)


def test_an_error_for_the_whole_answer_stands_at_the_top() -> None:
    assert parse_replica_answer(memoryview(answer_bytes([], [], session_id=0, error=71))) == ReplicaFetched(71, 0, [])


def test_a_count_over_the_limit_is_refused() -> None:
    parts = [ReplicaPartition(CLICKS.bytes, index, 0, 0, -1, 0, 1) for index in range(PARTITIONS_MAX + 1)]
    with pytest.raises(ProtocolError, match="accepted: 10000"):
        parse_replica_fetch(memoryview(encode_replica_fetch(FETCH._replace(partitions=parts))))
    rows = [ReplicaAnswer(CLICKS.bytes, index, 0, 0, 0) for index in range(PARTITIONS_MAX + 1)]
    with pytest.raises(ProtocolError, match="accepted: 10000"):
        parse_replica_answer(memoryview(answer_bytes(rows, [b""] * len(rows))))


def test_session_epochs_begin_again_after_the_largest() -> None:
    assert next_session_epoch(0) == 1
    assert next_session_epoch(0x7FFFFFFF) == 1


OFFSETS = st.integers(-1, (1 << 63) - 1)
INTS = st.integers(-1, (1 << 31) - 1)
TOPIC_IDS = st.sampled_from([CLICKS.bytes, VIEWS.bytes])


@given(
    st.lists(
        st.builds(ReplicaPartition, TOPIC_IDS, INTS, INTS, OFFSETS, INTS, OFFSETS, INTS, OFFSETS, st.booleans()), max_size=5
    ),
    st.one_of(st.none(), st.text(max_size=30)),
    st.sampled_from([[], sorted(FETCH.forgotten)]),
)
def test_any_request_reads_as_it_was_written(
    partitions: list[ReplicaPartition], cluster_id: str | None, forgotten: list[tuple[bytes, int]]
) -> None:
    fetch = FETCH._replace(partitions=partitions, cluster_id=cluster_id, forgotten=forgotten)
    assert parse_replica_fetch(memoryview(encode_replica_fetch(fetch))) == fetch


@given(
    st.lists(
        st.tuples(
            TOPIC_IDS,
            INTS,
            st.integers(-1, 120),
            OFFSETS,
            OFFSETS,
            st.binary(max_size=300),
            st.none() | st.tuples(INTS, OFFSETS),
            OFFSETS,
        ),
        max_size=5,
    )
)
def test_any_answer_reads_as_it_was_written(rows: list[Any]) -> None:
    answers = [ReplicaAnswer(*row[:5], len(row[5]), *row[6:]) for row in rows]
    fetched = parse_replica_answer(memoryview(answer_bytes(answers, [row[5] for row in rows])))
    assert [tuple(row) for row in fetched.partitions] == [(*row[:5], memoryview(row[5]), *row[6:]) for row in rows]


ONE_ASKED = ReplicaPartition(CLICKS.bytes, 3, 7, 1000, 6, 10, 1 << 20, 900)
ONE_TOLD = ReplicaAnswer(CLICKS.bytes, 3, 0, 900, 10, 5)


@given(st.integers(0, 200), st.integers(0, 255), st.integers(-1, 200))
def test_the_short_way_through_a_request_says_what_the_general_one_says(at: int, byte: int, end: int) -> None:
    body = bytearray(encode_replica_fetch(FETCH._replace(partitions=[ONE_ASKED], forgotten=[])))
    body[at % len(body)] = byte
    view = memoryview(bytes(body[:end] if 0 <= end < len(body) else body))
    fetch = replica_fetch._parse_one(view)
    assert fetch is None or (fetch, len(view)) == replica_fetch._parse_request(view)


@given(st.integers(0, 100), st.integers(0, 255), st.integers(-1, 100))
def test_the_short_way_through_an_answer_says_what_the_general_one_says(at: int, byte: int, end: int) -> None:
    body = bytearray(answer_bytes([ONE_TOLD], [b"12345"]))
    body[at % len(body)] = byte
    view = memoryview(bytes(body[:end] if 0 <= end < len(body) else body))
    try:
        fetched = replica_fetch._parse_one_answer(view)
    except ProtocolError:
        fetched = None
    assert fetched is None or (fetched, len(view)) == replica_fetch._parse_answer(view)


def test_what_one_partition_is_asked_and_told_goes_the_short_way() -> None:
    asked = memoryview(encode_replica_fetch(FETCH._replace(partitions=[ONE_ASKED], forgotten=[])))
    assert replica_fetch._parse_one(asked) is not None
    assert replica_fetch._parse_one_answer(memoryview(answer_bytes([ONE_TOLD], [b"12345"]))) is not None
