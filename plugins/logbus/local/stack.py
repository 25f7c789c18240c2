"""The whole platform in one directory, on one machine: PostgreSQL (warehouse, ledger and Airflow's database), broker, Airflow.

    HOME/lock       held while a stack runs here; HOME/run        logs and process ids of the programs
    HOME/postgres   the embedded server's data;  HOME/broker     the log;  HOME/airflow   Airflow's home

A second run in the same place finds everything the first one stored. Whatever ends this process ends all of it (see guard.py);
`stop` does so in order: Airflow before the broker before the database, because each is a client of the next.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from logbus.errors import UserError
from logbus.local.airflow_instance import AirflowInstance, AirflowSettings
from logbus.local.processes import Program, ReservedPorts, StackError, Supervisor, accepts_connections, end_leftovers, wait_until
from logbus.provider import CONNECTION_TYPE
from logbus.spark_submit import LOCAL_MASTER
from logbus.warehouse.embedded import EmbeddedPostgres

BROKER_READY_TIMEOUT_SECONDS = 60.0  # a log of many segments is checked at start
POOL_NAME = "logbus_load"

# Ports a person can remember, taken where they are free: Airflow's own and Kafka's own.
MEMORABLE_PORTS = (8080, 9092)


class LocalStack:
    """A stack in `home`. `project` is the directory that holds dags/ and plugins/; `environment` is handed to every program;
    `dags` is another folder of DAGs in place of the project's."""

    def __init__(
        self,
        home: Path,
        *,
        project: Path,
        environment: Mapping[str, str],
        ports: tuple[int, ...] = (),
        dags: Path | None = None,
    ) -> None:
        self.home = home.absolute()
        self.project = project.absolute()
        self.dags = dags and dags.absolute()
        self._environment = environment
        self._supervisor = Supervisor()
        self._airflow_supervisor = Supervisor()
        self._postgres = EmbeddedPostgres(self.home / "postgres")
        self._ports = ReservedPorts(2, ports)
        self._airflow_port, self._broker_port = self._ports.numbers
        self._airflow: AirflowInstance | None = None
        self._lock: int | None = None

    def __enter__(self) -> LocalStack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def warehouse_url(self) -> str:
        return self._postgres.url("logbus")

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._broker_port}"

    @property
    def client_config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def airflow(self) -> AirflowInstance:
        if self._airflow is None:
            raise StackError("Airflow is not started: call start_storage first")
        return self._airflow

    def start_storage(self) -> None:
        """PostgreSQL and the broker; returns when both answer."""
        self._lock = lock_home(self.home)
        end_leftovers(self.home / "run")
        self._postgres.start()
        airflow_database = self._postgres.create_database("airflow")
        self._postgres.create_database("logbus")
        self._airflow = self._make_airflow(airflow_database)
        broker = self._supervisor.start(self._broker_program())
        wait_until(
            lambda: accepts_connections(self._broker_port),
            timeout_seconds=BROKER_READY_TIMEOUT_SECONDS,
            what="the broker",
            processes=[broker],
        )

    def start_airflow(self) -> None:
        """Airflow, with its connections and the pool of the loads; takes twenty seconds, so mostly run beside something else."""
        self.airflow.start()
        self.airflow.api.ensure_pool(POOL_NAME, 1, "One Spark driver at a time")

    def raise_if_broken(self) -> None:
        """An error that says which program has ended, where one has."""
        self._supervisor.raise_if_any_ended()
        self._airflow_supervisor.raise_if_any_ended()
        if not self._postgres.is_running:
            raise StackError(f"the embedded PostgreSQL has ended; see {self._postgres.log_path}")

    def stop(self) -> None:
        """End everything; does nothing where nothing runs. May be called at any moment, also while a thread starts parts."""
        self._airflow_supervisor.end()
        self._supervisor.end()
        self._postgres.stop()
        self._ports.release()
        if self._airflow is not None:
            self._airflow.api.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _broker_program(self) -> Program:
        overrides = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._broker_port}",
            "log.dirs": str(self.home / "broker"),
            "logbus.acks.all.waits.for.flush": "true",  # there are no replicas: what is acknowledged survives a power cut
        }
        options = [word for key, value in overrides.items() for word in ("--override", f"{key}={value}")]
        return Program(
            name="broker",
            command=[sys.executable, "-m", "broker", "serve", *options],
            environment=self._environment,
            directory=self.home / "run",
            working_directory=self.home,
        )

    def _make_airflow(self, database_url: str) -> AirflowInstance:
        airflow_home = self.home / "airflow"
        airflow_home.mkdir(exist_ok=True)
        settings = AirflowSettings(
            home=airflow_home,
            run_directory=self.home / "run",
            project=self.project,
            port=self._airflow_port,
            database_url=database_url,
            connections=self._connections(),
            dags=self.dags,
        )
        return AirflowInstance(settings, self._environment, self._airflow_supervisor)

    def _connections(self) -> dict[str, dict[str, object]]:
        return {
            "kafka_default": {"conn_type": "kafka", "extra": self.client_config},
            "warehouse_default": {
                "conn_type": CONNECTION_TYPE,
                "host": str(self._postgres.socket_directory),
                "login": "postgres",
                "schema": "logbus",
            },
            "spark_default": {"conn_type": "spark", "host": LOCAL_MASTER, "extra": {"deploy-mode": "client"}},
        }


def lock_home(home: Path) -> int:
    """Take the directory for this process; the descriptor returned holds it, and the kernel frees it however we end."""
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise UserError(f"another stack (process {owner}) runs in {home}: stop it, or choose another place with --home") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def project_directory() -> Path:
    """The checkout we run from: the directory with dags/ and plugins/ beside spark_jobs/."""
    spec = importlib.util.find_spec("spark_jobs")
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    project = Path(locations[0]).parent if locations else Path()
    if not (project / "dags").is_dir() or not (project / "plugins").is_dir():
        raise UserError(
            "there is no dags/ and plugins/ here: run from a checkout of the project (`uv sync` installs it in place)"
        )
    return project
