"""One SparkSession in the test process for the whole session, which saves the ten seconds that each spark-submit takes to start.

For tests of what a load does; how an application is started, killed and given its secrets is tested with the real spark-submit.
In a conftest.py: `from tests.support.spark import load_in_process, spark_session  # noqa: F401`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus import spark_submit
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Attempt
from logbus_spark.application import WindowOutcome
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession

from tests.support.in_process import driver

LoadInProcess = Callable[..., list[WindowOutcome]]


@pytest.fixture(scope="session")
def spark_session() -> Iterator[SparkSession]:
    """With the settings of a real application, on two threads of this machine."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection that it closes, in the middle of other tests
    worker = spark_submit.environment("", {})
    # A task that fails is tried again, as on a cluster.
    builder = SparkSession.builder.master("local[2, 2]").appName("logbus tests")
    others = {"spark.driver.memory": spark_submit.LOCAL_DRIVER_MEMORY, "spark.connect.grpc.binding.port": "0"}
    for name, value in {**spark_submit.conf(), **others}.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
            patch.setenv(name, worker[name])
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def spark_connect(spark_session: SparkSession) -> Iterator[str]:
    """Spark's own server for Spark Connect, in the JVM of that session; its address."""
    classes: Any = spark_session._jvm
    service = connect_service(spark_session)
    service.start(spark_session._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(classes.scala.Option.empty(), classes.scala.Option.empty())


def connect_service(spark_session: SparkSession) -> Any:
    """What the server is in its JVM."""
    classes: Any = spark_session._jvm
    return getattr(getattr(classes.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")


@pytest.fixture(scope="session")
def remote_session(spark_connect: str) -> Iterator[Any]:
    """A session behind that server, as a program without a JVM has it."""
    session = RemoteSession.builder.remote(spark_connect).create()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def load_in_process(spark_session: SparkSession) -> LoadInProcess:
    """Runs the application for attempts that have begun; returns its outcomes."""

    def load(warehouse_url: str, client_config: Mapping[str, Any], attempts: Sequence[Attempt]) -> list[WindowOutcome]:
        log = Topics(Client(client_config))
        application = driver(Ledger(connect(warehouse_url)), log, client_config, lambda: datetime.now(UTC))
        return application.load(attempts[0].pipeline, [attempt.token for attempt in attempts])

    return load
