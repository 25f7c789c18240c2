"""A user's own Spark program reads exactly the offsets it was given, from a real broker in a real session."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from logbus.errors import UserError
from logbus.ledger.handover import as_text, hand_over
from logbus.model import FrozenWindow, OffsetRange, Pipeline
from pyspark.sql import SparkSession

from spark_jobs.given_windows import given_windows, read_records
from tests.support.airflow_context import HOUR_START
from tests.support.broker import AnyBroker
from tests.support.fake_ledger import window
from tests.support.topics import create_topic

TOPIC = "given-windows"
PIPELINE = Pipeline(name="p", topic=TOPIC, table="p", parse="raw")


@pytest.fixture(scope="module")
def filled(broker: AnyBroker) -> AnyBroker:
    """Two partitions with fifty records each."""
    create_topic(broker.bootstrap, TOPIC, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(50):
        for partition in (0, 1):
            producer.produce(TOPIC, f"{partition}/{number}".encode(), partition=partition)
    assert producer.flush(30) == 0
    return broker


def hour(number: int, *ranges: tuple[int, int, int]) -> FrozenWindow:
    parts = (OffsetRange(topic=TOPIC, partition=part, start_offset=start, end_offset=end) for part, start, end in ranges)
    return window(HOUR_START + timedelta(hours=number), id=number, topic=TOPIC, ranges=tuple(parts))


def read(broker: AnyBroker, spark: SparkSession, *windows: FrozenWindow) -> list[tuple[int, str]]:
    environ = {
        "LOGBUS_WINDOWS": as_text(hand_over(PIPELINE, windows)),
        "LOGBUS_KAFKA_CONFIG": json.dumps({"bootstrap.servers": broker.bootstrap}),
    }
    rows = read_records(spark, given_windows(environ), environ).collect()
    return sorted((row.window_id, row.value.decode()) for row in rows)


def test_a_program_reads_exactly_the_offsets_it_was_handed(filled: AnyBroker, spark_session: SparkSession) -> None:
    found = read(filled, spark_session, hour(1, (0, 5, 9), (1, 0, 2)), hour(2, (0, 9, 11), (1, 2, 2)))
    assert found == sorted(
        [*((1, f"0/{number}") for number in range(5, 9)), (1, "1/0"), (1, "1/1"), *((2, f"0/{number}") for number in (9, 10))]
    )


def test_an_hour_without_records_is_an_empty_frame(filled: AnyBroker, spark_session: SparkSession) -> None:
    assert read(filled, spark_session, hour(1, (0, 5, 5), (1, 7, 7))) == []


def test_a_program_that_was_started_otherwise_is_told_how() -> None:
    with pytest.raises(UserError, match="SparkSubmitWindowOperator"):
        given_windows({})
