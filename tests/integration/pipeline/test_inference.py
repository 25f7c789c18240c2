"""A pipeline that infers its columns, with a real broker and ledger: columns are added and never changed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Producer
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Attempt, Interval, Pipeline
from logbus.waiting import PATIENCE_SECONDS

from spark_jobs.application import Application
from tests.support.broker import AnyBroker
from tests.support.topics import create_topic

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
START = datetime(2026, 11, 21, 8, tzinfo=UTC)


def send(broker: AnyBroker, hour: int, *rows: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    stamp = int((START + timedelta(hours=hour)).timestamp() * 1000)
    for row in rows:
        producer.produce("inferred", json.dumps(row).encode(), partition=0, timestamp=stamp)
    assert producer.flush(PATIENCE_SECONDS) == 0


def test_columns_are_added_as_later_records_show_them_and_never_changed(broker: AnyBroker, warehouse_url: str) -> None:
    create_topic(broker.bootstrap, "inferred", config={"retention.ms": "-1"})
    config = {"bootstrap.servers": broker.bootstrap}
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(config))
    send(broker, 0, {"host": "a", "size": 1})
    send(broker, 1, {"host": "b", "size": 0.5, "tags": ["x"], "at": "2026-11-21T09:00:00Z"})
    settings = {"infer": True, "columns": {"at": "timestamptz"}}
    registered = ledger.register(Pipeline(name="i", topic="inferred", table="i", parse="json", settings=settings), log, NOW)
    application = Application(ledger=ledger, log=log, client_config=config, now=lambda: NOW, report=lambda outcome: None)

    def infer(hour: int) -> dict[str, str]:
        start = START + timedelta(hours=hour)
        ledger.freeze_or_get("i", Interval.hour(start), log, NOW)
        attempts: list[Attempt] = ledger.begin_attempts("i", [start], "run", 1, NOW)
        found: dict[str, str] = application.infer(ledger.pipeline("i"), attempts).settings["columns"]
        return found

    assert infer(0) == {"at": "timestamptz", "host": "text", "size": "bigint"}
    assert infer(1) == {"at": "timestamptz", "host": "text", "size": "bigint", "tags": "jsonb"}
    assert ledger.register(registered, log, NOW).settings == settings
    assert ledger.pipeline("i").settings["columns"] == infer(1)
    ledger.engine.dispose()
