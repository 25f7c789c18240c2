"""What the benchmark of the pages shows is a ledger that they understand: its statements name every column that has to be filled."""

from __future__ import annotations

from datetime import UTC, datetime

from logbus.kafka.client import Client
from logbus.kafka.topic_list import TopicBatches
from logbus.model import HOUR
from logbus.status.fleet import read_fleet
from sqlalchemy import Engine

from benchmarks.ui_data import HOURS, TOPICS, Platform
from tests.support.broker import AnyBroker


def test_every_pipeline_of_the_benchmark_is_read(engine: Engine, broker: AnyBroker) -> None:
    begin = datetime(2026, 11, 1, tzinfo=UTC)
    Platform(engine=engine, bootstrap=broker.bootstrap, partitions=1, begin=begin).seed()
    readings = read_fleet(engine, TopicBatches(Client({"bootstrap.servers": broker.bootstrap})), begin + (HOURS + 1) * HOUR)
    assert len(readings) == TOPICS
