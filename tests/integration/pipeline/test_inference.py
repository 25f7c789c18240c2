"""A pipeline that infers its columns, with a real broker and ledger: columns are added and never changed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Interval, Pipeline, milliseconds

from tests.support.broker import AnyBroker, client_settings
from tests.support.in_process import driver
from tests.support.ledgers import NOW
from tests.support.topics import create_topic, send

START = datetime(2026, 11, 21, 8, tzinfo=UTC)


def test_columns_are_added_as_later_records_show_them_and_never_changed(broker: AnyBroker, warehouse_url: str) -> None:
    create_topic(broker.bootstrap, "inferred", config={"retention.ms": "-1"})
    config = client_settings(broker)
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(config))
    rows = [{"host": "a", "size": 1}, {"host": "b", "size": 0.5, "tags": ["x"], "at": "2026-11-21T09:00:00Z"}]
    stamps = [milliseconds(START + timedelta(hours=hour)) for hour in range(2)]
    records = [{"value": json.dumps(row), "timestamp": stamp} for row, stamp in zip(rows, stamps, strict=True)]
    send(broker.bootstrap, "inferred", records)
    settings = {"infer": True, "columns": {"at": "timestamptz"}}
    registered = ledger.register(Pipeline(name="i", topic="inferred", table="i", parse="json", settings=settings), log, NOW)
    application = driver(ledger, log, config)

    def infer(hour: int) -> dict[str, str]:
        start = START + timedelta(hours=hour)
        ledger.freeze_or_get("i", Interval.hour(start), log, NOW)
        attempts = ledger.begin_attempts("i", [start], "run", 1, NOW)
        columns: dict[str, str] = application.prepare(ledger.pipeline("i"), attempts).pipeline.settings["columns"]
        return columns

    assert infer(0) == {"at": "timestamptz", "host": "text", "size": "bigint"}
    assert infer(1) == {"at": "timestamptz", "host": "text", "size": "bigint", "tags": "jsonb"}
    assert ledger.register(registered, log, NOW).settings == settings
    assert ledger.pipeline("i").settings["columns"] == infer(1)
    ledger.engine.dispose()
