"""An hour on machines that are many: a topic on three brokers of which one dies, a standalone Spark of two workers, and the DAG
`sightings` (dag_on_clusters.py), whose load a script submits between the two halves of our operator."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from logbus import spark_submit
from logbus.kafka import client_config
from logbus.loads.ledger import Ledger
from logbus.model import HOUR, Interval, WindowState, milliseconds
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine

from tests.support import airflow_runs, topics
from tests.support.clusters import RunningCluster
from tests.support.demos import SecondDemo
from tests.support.standalone_spark import StandaloneSpark, standalone_spark
from tests.support.zookeeper import RunningZooKeeper

START, VISITS, PARTITIONS = datetime(2015, 5, 17, 10, tzinfo=UTC), 400, 4
SETTINGS = {**spark_submit.conf(), "spark.executor.memory": "512m", "spark.executor.cores": "1"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with RunningZooKeeper() as zookeeper, RunningCluster(tmp_path_factory.mktemp("kafka"), zookeeper) as running:
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with standalone_spark(tmp_path_factory.mktemp("spark"), workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def submit_program(
    second: SecondDemo, kafka: RunningCluster, spark: StandaloneSpark, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What a cluster gives a driver by itself: the secrets, and where Spark is."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "client.properties").write_text(client_config.properties({"bootstrap.servers": kafka.bootstrap}))
    environment = {
        spark_submit.WAREHOUSE_URL_VARIABLE: second.stack.warehouse_url,
        "LOGBUS_CLIENT_CONFIG": str(folder / "client.properties"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    settings = [word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair))]
    options = ["--master", spark.url, "--driver-memory", spark_submit.LOCAL_DRIVER_MEMORY, *settings]
    command = shlex.join([spark_submit.spark_submit_binary(), *options, str(spark_submit.application_path())])
    program = folder / "submit"
    program.write_text(f'#!/bin/sh\n{exports}exec {command} "$@"\n')
    program.chmod(0o700)
    return program


@pytest.mark.long
def test_an_hour_on_three_brokers_is_loaded_by_two_workers_though_one_broker_dies(
    second: SecondDemo, kafka: RunningCluster, spark: StandaloneSpark, submit_program: Path, engine: Engine
) -> None:
    topics.create_topic(kafka.bootstrap, "sightings", partitions=PARTITIONS, config={"retention.ms": "-1"})
    stamps = (milliseconds(START + timedelta(seconds=number)) for number in range(VISITS))
    records = ({"value": json.dumps({"visitor": number}), "timestamp": stamp} for number, stamp in enumerate(stamps))
    topics.send(kafka.bootstrap, "sightings", records, {"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    kafka.brokers[1].kill9()

    api = second.stack.airflow.api
    connection = {
        "connection_id": "kafka_three",
        "conn_type": "kafka",
        "extra": json.dumps({"bootstrap.servers": kafka.bootstrap}),
    }
    api.request("POST", "/api/v2/connections", json=connection)
    api.request("POST", "/api/v2/variables", json={"key": "submit_program", "value": str(submit_program)})
    run = api.wait(airflow_runs.ask_for_run(api, "sightings", Interval(START, START + HOUR)), PATIENCE_SECONDS)
    api.pause("sightings")

    (window,) = Ledger(engine).windows("sightings", since=START, until=START)
    assert (window.state, window.record_count, len(window.ranges)) == (WindowState.AUDITED, VISITS, PARTITIONS)
    loaded = api.xcom(run, "verify")
    assert (loaded["loaded"], loaded["adopted"], loaded["windows"][0]["fingerprint"]) == (VISITS, False, window.fingerprint)
    assert all(list(work.glob("app-*/*/stderr")) for work in spark.works)
    assert "--window" in api.xcom(run, "begin", "arguments")
