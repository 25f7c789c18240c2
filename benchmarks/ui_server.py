"""What benchmarks/ui.py measures: a seeded platform, and an Airflow api-server with our plugin, which can be started again."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from logbus.cli.local_airflow import AirflowApi, AirflowSettings, airflow_environment
from logbus.cli.processes import Program, Supervisor
from logbus.cli.stack import project_directory
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.model import HOUR, Grid, instant_text, utc_now
from logbus.provider import CONNECTION_TYPE
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.windows.migrations import create_ledger

from benchmarks.peers.logbus import LogbusBroker
from benchmarks.processes import free_port
from benchmarks.ui_data import HOURS, Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A broker and a warehouse that are up and seeded, how Airflow is started on them, and the pages' addresses by name."""

    broker: LogbusBroker
    airflow: AirflowSettings
    paths: Mapping[str, str]

    @contextmanager
    def api_server(self) -> Iterator[httpx.Client]:
        """A new process, and a client that is already logged in: getting a token is not part of a page."""
        supervisor, password = Supervisor(), self.airflow.password
        try:
            server = supervisor.start(program(self.airflow, "api-server", "--workers", "1"))
            with httpx.Client(base_url=self.airflow.url, timeout=60.0, trust_env=False) as client:
                with closing(AirflowApi(self.airflow.url, password)) as api:
                    wait_until(api.answers, what="Airflow's api-server", processes=[server])
                    client.headers["Authorization"] = f"Bearer {api.token()}"
                yield client
        finally:
            supervisor.end()


@contextmanager
def seeded(partitions: int) -> Iterator[Place]:
    """A platform whose topics have this many partitions. Everything ends with the block."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-ui-", ignore_cleanup_errors=True)))
        settings = {"logbus.metrics.listener": f"http://127.0.0.1:{free_port()}", "log.retention.ms": "-1"}
        broker = stack.enter_context(LogbusBroker(directory / "broker", settings=settings))
        postgres = stack.enter_context(EmbeddedPostgres(directory / "pg"))
        engine = connect(postgres.create_database("warehouse"))
        stack.callback(engine.dispose)
        create_ledger(engine)
        begin = Grid().floor(utc_now()) - HOURS * HOUR
        Platform(engine=engine, bootstrap=broker.bootstrap, partitions=partitions, begin=begin).seed()
        airflow = airflow_settings(directory / "airflow", postgres, broker.bootstrap)
        Supervisor().run(program(airflow, "db", "migrate"), PATIENCE_SECONDS)
        paths = {name: f"/logbus/api/{name}" for name in ("overview", "topics", "groups")}
        paths["window"] = f"/logbus/api/windows/topic_00/{instant_text(begin)}"
        yield Place(broker=broker, airflow=airflow, paths=paths)


def airflow_settings(home: Path, postgres: EmbeddedPostgres, bootstrap: str) -> AirflowSettings:
    home.mkdir()
    warehouse = {
        "conn_type": CONNECTION_TYPE,
        "host": str(postgres.socket_directory),
        "login": "postgres",
        "schema": "warehouse",
    }
    return AirflowSettings(
        home=home,
        run_directory=home / "run",
        project=project_directory(),
        port=free_port(),
        database_url=postgres.create_database("airflow"),
        connections={
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}},
            "warehouse_default": warehouse,
        },
    )


def program(settings: AirflowSettings, *arguments: str) -> Program:
    return Program(
        name=arguments[0],
        command=[sys.executable, "-m", "airflow", *arguments],
        environment=airflow_environment(settings, os.environ),
        directory=settings.home / "run",
        working_directory=settings.home,
    )
