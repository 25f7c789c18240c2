"""What one application does with the windows it is given, in a running Spark session."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import Interval, Pipeline
from logbus.waiting import PATIENCE_SECONDS
from logbus.warehouse.engine import connect
from sqlalchemy import text

from spark_jobs.outcomes import LoadState
from tests.support.broker import AnyBroker
from tests.support.spark import LoadInProcess
from tests.support.topics import create_topic

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
NOW = datetime(2015, 5, 18, tzinfo=UTC)


@pytest.fixture(scope="module")
def lines(broker: AnyBroker) -> Pipeline:
    """Two hours with ten lines each; one line in each is not text that PostgreSQL can hold."""
    create_topic(broker.bootstrap, "lines", partitions=2, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        stamp = int((START + timedelta(minutes=6 * number)).timestamp() * 1000)
        producer.produce("lines", b"\xff" if number % 10 == 0 else b"line %d" % number, partition=number % 2, timestamp=stamp)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return Pipeline(name="lines", topic="lines", table="lines", parse="lines")


def test_each_window_is_committed_with_its_counts_and_a_superseded_one_is_left_alone(
    broker: AnyBroker, warehouse_url: str, lines: Pipeline, load_in_process: LoadInProcess
) -> None:
    client = {"bootstrap.servers": broker.bootstrap}
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(client))
    ledger.register(lines, log, NOW)
    starts = [START, START + timedelta(hours=1)]
    for start in starts:
        ledger.freeze_or_get("lines", Interval.hour(start), log, NOW)
    stale = ledger.begin_attempts("lines", starts[:1], "slow", 1, NOW)
    current = ledger.begin_attempts("lines", starts, "run", 1, NOW)

    outcomes = load_in_process(warehouse_url, client, [*stale, *current])

    states = {outcome.attempt.token: outcome.state for outcome in outcomes}
    assert states == {
        stale[0].token: LoadState.SUPERSEDED,
        current[0].token: LoadState.COMMITTED,
        current[1].token: LoadState.COMMITTED,
    }
    for window in ledger.windows("lines"):
        assert window.counts is not None
        assert (window.counts.read, window.counts.loaded, window.counts.dead_lettered) == (10, 9, 1)
    with ledger.engine.connect() as connection:
        found = connection.execute(text("select _partition, _offset, line from lines order by _offset, _partition")).all()
    assert [(part, offset, line) for part, offset, line in found] == [
        (number % 2, number // 2, f"line {number}") for number in range(20) if number % 10
    ]


def test_an_error_budget_that_is_lifted_during_a_load_still_holds_for_it(
    broker: AnyBroker, warehouse_url: str, lines: Pipeline, load_in_process: LoadInProcess
) -> None:
    """As by another DAG that defines no budget, after the task began the attempt and before its driver starts."""
    client = {"bootstrap.servers": broker.bootstrap}
    ledger, log = Ledger(connect(warehouse_url)), Topics(Client(client))
    ledger.register(replace(lines, settings={"max_errors": 0}), log, NOW)
    ledger.freeze_or_get("lines", Interval.hour(START), log, NOW)
    begun = ledger.begin_attempts("lines", [START], "run", 1, NOW)
    ledger.register(replace(lines, parse="raw"), log, NOW)

    (outcome,) = load_in_process(warehouse_url, client, begun)

    assert outcome.state is LoadState.FAILED
    assert "max_errors 0" in str(outcome.error)
    (again,) = load_in_process(warehouse_url, client, ledger.begin_attempts("lines", [START], "run", 2, NOW))
    assert (again.state, again.counts and again.counts.loaded) == (LoadState.COMMITTED, 10)
