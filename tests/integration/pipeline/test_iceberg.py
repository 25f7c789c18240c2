"""One real Spark job into Iceberg: the driver commits and the audit finds what the tasks wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.audit import audit_window
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import Pipeline, milliseconds
from logbus_spark.application import LoadState

from tests.support.broker import AnyBroker, client_settings
from tests.support.ledgers import intervals_of
from tests.support.spark import LoadInProcess
from tests.support.topics import create_topic, send

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOURS, PARTITIONS, RECORDS_PER_HOUR = 3, 2, 3_000


def fill(bootstrap: str, topic: str) -> None:
    """Three hours in two partitions; the last record of each hour does not parse."""
    create_topic(bootstrap, topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    records = (
        {
            "value": b"\xff" if number == RECORDS_PER_HOUR - 1 else f"line {number}",
            "partition": number % PARTITIONS,
            "timestamp": milliseconds(START + timedelta(hours=hour, seconds=number)),
        }
        for hour in range(HOURS)
        for number in range(RECORDS_PER_HOUR)
    )
    send(bootstrap, topic, records, {"enable.idempotence": True})


def test_a_spark_job_loads_many_windows_into_iceberg(
    broker: AnyBroker, warehouse_url: str, load_in_process: LoadInProcess, tmp_path: Path
) -> None:
    topic, client_config, now = "lake", client_settings(broker), datetime.now(UTC)
    fill(broker.bootstrap, topic)
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(client_config))
    settings = {"sink": "iceberg", "warehouse": f"file://{tmp_path}/lake"}
    ledger.register(Pipeline(name="p", topic=topic, table="t", parse="lines", settings=settings), log, now)
    windows = [ledger.freeze_or_get("p", interval, log, now) for interval in intervals_of(ledger.plan_load("p", log, now))]
    starts = [window.interval.start for window in windows]
    for _ in range(2):
        outcomes = load_in_process(warehouse_url, client_config, ledger.begin_attempts("p", starts, "test", 1, now))
        assert [(outcome.state, outcome.error) for outcome in outcomes] == [(LoadState.COMMITTED, None)] * HOURS
    reports = [audit_window(ledger.engine, log, "p", start, now, sink_for) for start in starts]
    assert [(report.ok, report.problems) for report in reports] == [(True, ())] * HOURS
    assert sum(tally.loaded for report in reports for tally in report.counted.values()) == HOURS * (RECORDS_PER_HOUR - 1)
