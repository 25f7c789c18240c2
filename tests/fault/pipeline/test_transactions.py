"""Transactions on Apache Kafka; our broker has none. Aborted records and markers take offsets but are not records."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from logbus.errors import TransactionOpen
from logbus.waiting import PATIENCE_SECONDS
from logbus_spark.application import LoadState
from sqlalchemy import Engine

from tests.support.kafka_peer import ApacheKafka
from tests.support.ledgers import stamps
from tests.support.real_pipeline import RealPipeline
from tests.support.topics import wait_for_markers

pytestmark = pytest.mark.usefixtures("without_spark")


def test_aborted_transactions_are_not_loaded_and_an_hour_with_an_open_one_waits_for_its_end(
    apache_kafka: ApacheKafka, engine: Engine
) -> None:
    pipeline = RealPipeline(apache_kafka.bootstrap, engine, partitions=1, settings={"offset_gaps": True})
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": pipeline.name})
    producer.init_transactions(PATIENCE_SECONDS)

    def send(value: bytes, *hours: float) -> None:
        producer.begin_transaction()
        for stamp in stamps(*hours):
            producer.produce(pipeline.name, value, partition=0, timestamp=stamp)
        producer.flush(PATIENCE_SECONDS)

    send(b"committed", 10, 10.1)
    producer.commit_transaction(30)
    send(b"aborted", 10.2, 10.3, 10.4)
    producer.abort_transaction(30)
    send(b"committed", 10.5)
    producer.commit_transaction(30)
    send(b"open", 10.6, 11.5)
    with pytest.raises(TransactionOpen, match=r"-0 \[\d+, \d+\)"):
        pipeline.freeze(10)
    producer.commit_transaction(30)
    wait_for_markers(apache_kafka.bootstrap, pipeline.name)
    assert [outcome.state for outcome in pipeline.load(10, 11)] == [LoadState.COMMITTED] * 2
    assert pipeline.audit(10).problems == ()
    assert pipeline.found() == pipeline.expected()
    assert len(pipeline.found()) == 5
