"""`logbus doctor` against a real broker, a real PostgreSQL and the machine the tests run on."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from logbus.kafka import client
from logbus.kafka.client import Client
from logbus.kafka.cluster import api_versions, log_directories
from logbus.status.checks import Machine, check_clocks
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.commands import Run


def test_broker_disk_and_versions_are_well_here(run: Run, broker: AnyBroker) -> None:
    result = run("doctor", "--only", "broker", "--only", "versions", "--only", "spark", "--only", "java", "-o", "json")
    found = {one["subject"]: one for one in json.loads(result.stdout)}
    assert {name: one["severity"] for name, one in found.items()} == dict.fromkeys(("versions", "java", "spark", "broker"), "ok")
    assert broker.bootstrap in found["broker"]["message"]


def test_what_is_wrong_ends_with_status_5_and_what_to_type(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS_MAX", 0.5)
    result = run("doctor", "--only", "broker", "-b", "127.0.0.1:1", status=5)
    assert result.stdout.startswith("error: broker: the broker at 127.0.0.1:1 did not answer")
    assert "start it (`logbus broker serve`)" in result.stdout


def test_the_brokers_own_figures_are_told(run: Run, broker: AnyBroker, topic: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap}
    assert api_versions(Client(config))["Produce"][1] >= 9
    run("topic", "create", topic, "--partitions", "2")
    run("produce", topic, "-p", "1", stdin="x" * 5000 + "\n")
    (directory,) = log_directories(Client(config))
    assert directory.partition_bytes[topic, 0] == 0
    assert 0 < directory.partition_bytes[topic, 1] < 6000
    stat = os.statvfs(directory.path)
    assert directory.total_bytes == stat.f_blocks * stat.f_frsize


@pytest.mark.parametrize(
    ("hours", "severity", "way"), [(0.0, "ok", ""), (1.0, "error", "behind"), (-0.01, "warning", "ahead of")]
)
def test_a_clock_that_differs_from_the_warehouses_is_shown(
    broker: AnyBroker, warehouse_url: str, hours: float, severity: str, way: str
) -> None:
    around = Machine(
        clock=lambda: datetime.now(UTC) + timedelta(hours=hours),
        client_config={"bootstrap.servers": broker.bootstrap},
        warehouse_url=warehouse_url,
    )
    (found, *_) = check_clocks(around)
    assert str(found.severity) == severity
    assert way in found.message


def test_a_record_from_the_future_is_named(run: Run, broker: AnyBroker, warehouse_url: str, new_topic: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(config)
    producer.produce(new_topic, b"early", timestamp=int((time.time() + 600) * 1000))
    assert producer.flush(PATIENCE_SECONDS) == 0
    run("pipeline", "register", "p", "--topic", new_topic, "--table", "t", "--parse", "lines", "--warehouse", warehouse_url)
    around = Machine(clock=lambda: datetime.now(UTC), client_config=config, warehouse_url=warehouse_url)
    (_, found) = check_clocks(around)
    assert found.message.startswith(f"topic {new_topic} has a record from the future")
