"""What a load reads in a real Spark from a real broker: every record as it is, an error if records are gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, Interval, Pipeline, milliseconds
from logbus.windows.handover import parse_content
from logbus_spark.application import Application, WindowOutcome
from logbus_spark.given_windows import SOURCE_NAME, windows_source
from logbus_spark.records import pack
from pyspark.sql import SparkSession
from sqlalchemy import text

from tests.support.broker import AnyBroker
from tests.support.in_process import driver
from tests.support.topics import create_topic, send

TOPIC = "read"
START = datetime(2026, 11, 20, 8, tzinfo=UTC)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_PER_HOUR = 100
HOURS = 3


def fill(bootstrap: str) -> None:
    """Three hours in two partitions: every codec, with and without keys, headers and values."""
    create_topic(bootstrap, TOPIC, partitions=2, config={"retention.ms": "-1"})
    for hour in range(HOURS):
        for place, codec in enumerate(CODECS):
            records = [record(hour, number) for number in range(place, RECORDS_PER_HOUR, len(CODECS))]
            send(bootstrap, TOPIC, records, {"compression.type": codec, "linger.ms": 50})


def record(hour: int, number: int) -> dict[str, Any]:
    return {
        "value": None if number == 50 else f"{hour}/{number} ".encode() * 20,
        "key": f"k{number}".encode() if number % 2 else None,
        "headers": [("host", b"web-1"), ("host", None), ("odd", b"\xff\0")] if number % 3 == 0 else None,
        "partition": number % 2,
        "timestamp": milliseconds(START + timedelta(hours=hour, minutes=number // 2)),
    }


@dataclass
class Reading:
    """A separate pipeline per test, over shared records."""

    application: Application
    pipeline: Pipeline
    windows: list[FrozenWindow]

    def load(self, *hours: int) -> list[WindowOutcome]:
        ledger = self.application.ledger
        starts = [self.windows[hour].interval.start for hour in hours]
        attempts = ledger.begin_attempts(self.pipeline.name, starts, "test", 1, datetime.now(UTC))
        return self.application.load(self.pipeline.name, [attempt.token for attempt in attempts])


@pytest.fixture(scope="module")
def filled(broker: AnyBroker) -> AnyBroker:
    fill(broker.bootstrap)
    return broker


def pipeline_reading(broker: AnyBroker, warehouse_url: str) -> Reading:
    config = {"bootstrap.servers": broker.bootstrap}
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(config))
    now = datetime.now(UTC)
    pipeline = ledger.register(Pipeline(name="r", topic=TOPIC, table="r", parse="raw"), log, now)
    windows = [ledger.freeze_or_get("r", Interval.hour(START + timedelta(hours=hour)), log, now) for hour in range(HOURS)]
    return Reading(driver(ledger, log, config, lambda: datetime.now(UTC)), pipeline, windows)


@pytest.fixture
def reading(filled: AnyBroker, warehouse_url: str, spark_session: SparkSession) -> Iterator[Reading]:
    reading = pipeline_reading(filled, warehouse_url)
    yield reading
    reading.application.ledger.engine.dispose()


def rows(reading: Reading, query: str) -> list[Any]:
    with reading.application.ledger.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_every_record_arrives_with_its_key_value_and_headers(reading: Reading) -> None:
    outcomes = reading.load(0, 1, 2)
    assert [outcome.error for outcome in outcomes] == [None] * HOURS
    assert [outcome.counts and outcome.counts.loaded for outcome in outcomes] == [RECORDS_PER_HOUR] * HOURS
    assert rows(reading, "select count(*), count(value), count(_key), count(_headers) from r") == [(300, 297, 150, 102)]
    (row,) = rows(reading, "select _key, _headers, value from r where _window_start = '2026-11-20T09:00:00Z' and _key = 'k9'")
    assert row == (b"k9", [["host", "web-1"], ["host", None], ["odd", {"base64": "/wA="}]], b"1/9 " * 20)


def test_hours_that_do_not_touch_are_read_alike(reading: Reading) -> None:
    assert [outcome.error for outcome in reading.load(0, 2)] == [None, None]
    by_hour = "select extract(hour from _window_start at time zone 'UTC')::int, count(*) from r group by 1 order by 1"
    assert rows(reading, by_hour) == [(8, 100), (10, 100)]


def test_records_that_are_gone_are_an_error_and_nothing_becomes_public(reading: Reading) -> None:
    """The log ends before the range does, as on a broker that lost its data."""
    with reading.application.ledger.engine.begin() as connection:
        connection.execute(
            text(f"update logbus.window_range set end_offset = end_offset + 1000 where window_id = {reading.windows[2].id}")
        )
    (outcome,) = reading.load(2)
    assert outcome.error is not None
    assert rows(reading, "select count(*) from r") == [(0,)]


def test_frozen_windows_can_be_read_as_a_data_frame(filled: AnyBroker, spark_session: SparkSession, warehouse_url: str) -> None:
    """The data source without jars, for programs that want more from the records than a load."""
    reading = pipeline_reading(filled, warehouse_url)
    content = reading.application.ledger.hand_over(reading.pipeline, reading.windows, reading.application.log)
    source = windows_source(pack(reading.windows, 2), {"bootstrap.servers": filled.bootstrap}, parse_content(content))
    spark_session.dataSource.register(source)
    frame = spark_session.read.format(SOURCE_NAME).load()
    found = {row["window_id"]: row["count"] for row in frame.groupBy("window_id").count().collect()}
    reading.application.ledger.engine.dispose()
    assert found == {window.id: RECORDS_PER_HOUR for window in reading.windows}
