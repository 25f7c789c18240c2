"""The requests and responses of the bare client, checked against the broker's own engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import read_header

from benchmarks.costs import wire
from tests.support.engine import Harness, batch

HEADER_BYTES = 4 + 10 + len("upkeep")


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path, auto_create_topics_enable=False)
    harness.create("t")
    return harness


def ask(broker: Harness, api_key: ApiKey, version: int, frame: bytes) -> bytes:
    """The response as it arrives on a connection: the correlation id before the body."""
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    return bytes(4) + broker.bytes_of(broker.dispatch(api_key, version, bytearray(frame[HEADER_BYTES:])))


def produce(broker: Harness, topic: str, raw: bytes) -> bytes:
    return ask(broker, ApiKey.PRODUCE, wire.PRODUCE_VERSION, wire.produce_frame(topic, raw))


def test_what_was_produced_is_fetched_batch_by_batch(broker: Harness) -> None:
    for raw in (batch(b"one", b"two"), batch(b"three")):
        wire.check_produced(produce(broker, "t", bytes(raw)), "t")
    broker.flush()
    answer = ask(broker, ApiKey.FETCH, wire.FETCH_VERSION, wire.fetch_frame("t", 0, wait_ms=0))
    assert [read_header(one).next_offset for one in wire.whole_batches(wire.fetched(answer, "t"))] == [2, 3]


def test_a_batch_that_is_cut_off_is_not_taken(broker: Harness) -> None:
    whole = bytes(batch(b"one"))
    assert [bytes(one) for one in wire.whole_batches(whole + whole[:-1])] == [whole]
    assert list(wire.whole_batches(whole[:60])) == []


def test_errors_are_told_from_answers(broker: Harness) -> None:
    with pytest.raises(wire.Refused, match="no-such-topic: Produce was answered with error 3"):
        wire.check_produced(produce(broker, "no-such-topic", bytes(batch(b"one"))), "no-such-topic")
    answer = ask(broker, ApiKey.FETCH, wire.FETCH_VERSION, wire.fetch_frame("t", 7, wait_ms=0))
    with pytest.raises(wire.Refused, match="t: Fetch was answered with error 1"):
        wire.fetched(answer, "t")


def test_who_leads_is_read_from_metadata(broker: Harness) -> None:
    for asked in (("t",), ()):
        answer = ask(broker, ApiKey.METADATA, wire.METADATA_VERSION, wire.metadata_frame(*asked))
        (topic,) = wire.metadata(answer).topics
        assert (topic.name, topic.partitions[0].leader_id) == ("t", broker.engine.config.broker_id)
