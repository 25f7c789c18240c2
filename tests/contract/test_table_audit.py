"""The audit of a table against a real log, our broker's and Apache Kafka's: markers and aborted records are no holes."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Producer
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.table_audit import TableReport, audit_table
from logbus.loads.target import Columns, postgres_table
from logbus.model import parse_instant
from logbus.waiting import PATIENCE_SECONDS

from tests.support.kafka_peer import ApacheKafka
from tests.support.topics import create_topic, delete_before, send, wait_for_markers

_numbers = itertools.count(1)
HOUR_MS, NOW = 1_763_627_400_000, parse_instant("2026-11-26T12:00Z")
KEPT = {"retention.ms": "-1"}


def audited(bootstrap: str, warehouse_url: str, topic: str, offsets: list[int]) -> TableReport:
    engine = connect(warehouse_url)
    with engine.begin() as connection:
        connection.exec_driver_sql('create table theirs (partition int, "offset" bigint, "timestamp" bigint)')
        for offset in offsets:
            connection.exec_driver_sql("insert into theirs values (0, %s, %s)", (offset, HOUR_MS + offset * 600_000))
    log = Topics(Client({"bootstrap.servers": bootstrap}, timeout_seconds=PATIENCE_SECONDS))
    with postgres_table(engine, "theirs", Columns()) as table:
        return audit_table(log, table, topic, NOW)


@pytest.mark.parametrize("kind", ["broker", "apache_kafka"])
def test_what_a_log_has_and_has_no_longer(kind: str, request: pytest.FixtureRequest, warehouse_url: str) -> None:
    bootstrap: str = request.getfixturevalue(kind).bootstrap
    topic = f"audited-{next(_numbers)}"
    create_topic(bootstrap, topic, config=KEPT)
    send(bootstrap, topic, [{"value": b"v", "timestamp": HOUR_MS + number * 600_000} for number in range(8)])
    delete_before(bootstrap, topic, 0, 2)
    first, second = audited(bootstrap, warehouse_url, topic, [0, 1, 2, 3, 3, 5, 6, 8]).hours
    assert (first.foreign, second.foreign) == (0, 1), "one after the log's end"
    assert (first.records, first.missing.count, first.doubled.count, len(first.unknown)) == (1, 0, 0, 1)
    assert [str(part) for part in (*second.missing.first, *second.doubled.first)] == [
        f"{topic}-0 [4, 5)",
        f"{topic}-0 [7, 8)",
        f"{topic}-0 [3, 4)",
    ]


def test_markers_and_aborted_records_are_not_missing(apache_kafka: ApacheKafka, warehouse_url: str) -> None:
    bootstrap, topic = apache_kafka.bootstrap, f"audited-{next(_numbers)}"
    create_topic(bootstrap, topic, config=KEPT)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(topic, b"v", timestamp=HOUR_MS)
        producer.flush(PATIENCE_SECONDS)
        end(PATIENCE_SECONDS)
    wait_for_markers(bootstrap, topic)
    # two records, a marker; two aborted ones, a marker; two records, a marker
    (hour,) = audited(bootstrap, warehouse_url, topic, [0, 1, 6]).hours
    assert (hour.records, hour.rows, [str(part) for part in hour.missing.first]) == (4, 3, [f"{topic}-0 [7, 8)"])
