"""Segments damaged under a running broker: a client gets an error or is cut off, never a wrong frame; the others are served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import ApiKey

from tests.support.batches import plain_batch
from tests.support.broker import LogbusBroker
from tests.support.raw_client import Closed, RawClient
from tests.support.topics import create_topic, read_partition
from tests.support.wire import Wanted, fetch_body, produce_answer, produce_body


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker", settings={"log.segment.bytes": "50000"}) as running:
        for topic in ("damaged", "whole"):
            create_topic(running.bootstrap, topic)
            fill(running, topic)
        yield running


def fill(broker: LogbusBroker, topic: str) -> None:
    """Three segments and a bit, flushed."""
    with RawClient(broker.bootstrap) as client:
        for _ in range(16):
            body = bytes(produce_body({(topic, 0): bytes(plain_batch(10, value=b"v" * 1000))}))
            assert produce_answer(client.request(ApiKey.PRODUCE, 9, body, flexible=True))[topic, 0].error_code == 0
    assert len(read_partition(broker.bootstrap, topic)) == 160


def test_a_segment_that_shrank_under_a_fetch_ends_the_connection_and_never_a_frame(ours: LogbusBroker) -> None:
    segment = min((ours.data / "damaged-0").glob("*.log"))
    os.truncate(segment, segment.stat().st_size // 2)
    with RawClient(ours.bootstrap) as client:
        client.send_request(ApiKey.FETCH, 12, bytes(fetch_body(Wanted(topic="damaged"))), flexible=True)
        with pytest.raises(Closed):
            client.receive_frame()
    assert "a log segment ended while it was being sent" in ours.log_path.read_text()
    assert len(read_partition(ours.bootstrap, "whole")) == 160


def test_a_flipped_byte_in_a_sealed_segment_is_found_by_the_clients_checksum(ours: LogbusBroker) -> None:
    segment = min((ours.data / "damaged-0").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[700] ^= 0x10  # inside the first batch's records
    segment.write_bytes(content)
    consumer = KafkaConsumer(
        bootstrap_servers=ours.bootstrap, group_id=None, check_crcs=True, consumer_timeout_ms=PATIENCE_SECONDS * 1000
    )
    try:
        consumer.assign([TopicPartition("damaged", 0)])
        consumer.seek(TopicPartition("damaged", 0), 0)
        with pytest.raises(CorruptRecordError):
            list(consumer)
    finally:
        consumer.close()
    assert ours.alive
    assert len(read_partition(ours.bootstrap, "whole")) == 160
