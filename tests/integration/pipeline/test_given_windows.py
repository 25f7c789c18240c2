"""A user's own Spark program reads exactly the offsets it was given, from a real broker in a real session."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import LogChanged, TopicRecreated, UserError
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.model import FrozenWindow, OffsetRange, Pipeline, Witness
from logbus.windows.handover import as_text, hand_over
from logbus_spark.given_windows import given_windows, read_records
from pyspark.sql import DataFrame, SparkSession

from tests.support.airflow_context import HOUR_START
from tests.support.broker import AnyBroker, client_settings
from tests.support.fake_ledger import window
from tests.support.topics import create_topic, delete_topic, send

TOPIC = "given-windows"
PIPELINE = Pipeline(name="p", topic=TOPIC, table="p", parse="raw")


def fill(broker: AnyBroker, topic: str) -> None:
    """Two partitions with fifty records each."""
    create_topic(broker.bootstrap, topic, partitions=2)
    places = [(part, number) for number in range(50) for part in (0, 1)]
    send(broker.bootstrap, topic, [{"value": f"{part}/{number}", "partition": part} for part, number in places])


@pytest.fixture(scope="module")
def filled(broker: AnyBroker) -> AnyBroker:
    fill(broker, TOPIC)
    return broker


def log_of(broker: AnyBroker) -> Topics:
    return Topics(Client(client_settings(broker)))


def hour(number: int, *ranges: tuple[int, int, int]) -> FrozenWindow:
    parts = (OffsetRange(topic=TOPIC, partition=part, start_offset=start, end_offset=end) for part, start, end in ranges)
    return window(HOUR_START + timedelta(hours=number), id=number, topic=TOPIC, ranges=tuple(parts))


def frame(
    broker: AnyBroker, spark: SparkSession, *windows: FrozenWindow, topic: str = TOPIC, witness: Witness | None = None
) -> DataFrame:
    log = log_of(broker)
    of_log = [replace(one, topic=topic, topic_id=log.topic(topic).topic_id) for one in windows]
    last = max(part.end_offset for one in windows for part in one.ranges if part.partition == 0) - 1
    witnesses = {0: witness} if witness else log.last_records(topic, {0: (last, last + 1)})
    environ = {
        "LOGBUS_WINDOWS": as_text(hand_over(replace(PIPELINE, topic=topic), of_log, witnesses)),
        "LOGBUS_KAFKA_CONFIG": json.dumps(client_settings(broker)),
    }
    return read_records(spark, given_windows(environ), environ)


def read(broker: AnyBroker, spark: SparkSession, *windows: FrozenWindow) -> list[tuple[int, str]]:
    return sorted((row.window_id, row.value.decode()) for row in frame(broker, spark, *windows).collect())


def test_a_program_reads_exactly_the_offsets_it_was_handed(filled: AnyBroker, remote_session: SparkSession) -> None:
    found = read(filled, remote_session, hour(1, (0, 5, 9), (1, 0, 2)), hour(2, (0, 9, 11), (1, 2, 2)))
    assert found == sorted(
        [*((1, f"0/{number}") for number in range(5, 9)), (1, "1/0"), (1, "1/1"), *((2, f"0/{number}") for number in (9, 10))]
    )


def test_an_hour_without_records_is_an_empty_frame(filled: AnyBroker, spark_session: SparkSession) -> None:
    assert read(filled, spark_session, hour(1, (0, 5, 5), (1, 7, 7))) == []


def test_a_program_that_was_started_otherwise_is_told_how() -> None:
    with pytest.raises(UserError, match="SparkSubmitWindowOperator"):
        given_windows({})


def test_a_program_reads_no_topic_that_was_made_again(filled: AnyBroker, spark_session: SparkSession) -> None:
    """Nor one that was made again between the frame and its reading."""
    fill(filled, "made-again")
    made = frame(filled, spark_session, hour(1, (0, 5, 9)), topic="made-again")
    environ_of_then = as_text(hand_over(replace(PIPELINE, topic="made-again"), [replace(hour(1, (0, 5, 9)), topic_id="former")]))
    delete_topic(filled.bootstrap, "made-again")
    fill(filled, "made-again")
    with pytest.raises(Exception, match="topic made-again was deleted and recreated"):
        made.collect()
    environ = {
        "LOGBUS_WINDOWS": environ_of_then,
        "LOGBUS_KAFKA_CONFIG": json.dumps(client_settings(filled)),
    }
    with pytest.raises(TopicRecreated, match="id former is now"):
        read_records(spark_session, given_windows(environ), environ)


def test_a_program_reads_no_log_that_holds_other_records(filled: AnyBroker, spark_session: SparkSession) -> None:
    other = Witness(offset=8, timestamp_ms=0, hash=1)
    with pytest.raises(LogChanged, match="given-windows-0 held at offset 8 a record"):
        frame(filled, spark_session, hour(1, (0, 5, 9)), witness=other)
    with pytest.raises(LogChanged, match="ends at offset 50, and windows are frozen up to 60"):
        frame(filled, spark_session, hour(1, (0, 5, 60)))
