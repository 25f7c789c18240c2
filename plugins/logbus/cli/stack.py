"""The whole platform in one directory, on one machine: PostgreSQL (warehouse, ledger and Airflow's database), brokers, Airflow,
and a schema registry if there is to be one.

    HOME/lock       held while a stack runs here; HOME/run        logs and process ids of the programs
    HOME/ports.json the ports of the last start, used again if they are free, so that known addresses stay valid; the registry's
                    is in HOME/registry.port
    HOME/postgres   the embedded server's data;  HOME/airflow     Airflow's home;  the log: see local_brokers.py
    HOME/security   certificates, users and their files, if the brokers are secured: see secure_home.py

A second run in the same place finds everything the first one stored. Whatever ends this process ends all of it (see watchdog.py);
`stop` does so in order: Airflow, the registry, the brokers, the database, because each is a client of a later one.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from logbus import errors, provider, spark_submit, waiting
from logbus.cli import local_airflow, local_brokers, processes, secure_home
from logbus.loads import roles
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect

if TYPE_CHECKING:
    from rich.console import Console

PORTS_FILE = "ports.json"
REGISTRY_PORT_FILE = "registry.port"
WATCH_SECONDS = 1.0

# Ports that users can remember, used if they are free: Airflow's default, then Kafka's and those after it.
MEMORABLE_PORTS = (8080, 9092, 9093, 9094)
REGISTRY_PORT = 8081  # Confluent's


class LocalRegistry:
    """The schema registry: a process that keeps schemas in the brokers' topic `_schemas`. `security` is how they are secured:
    then it speaks TLS by a certificate of the brokers' authority, lets in their users, and has a user of its own there."""

    def __init__(
        self,
        home: Path,
        *,
        environment: Mapping[str, str],
        security: secure_home.SecureHome | None = None,
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self._home = home
        self._environment = environment
        self._security = security
        self._say = say
        self._ports = processes.ReservedPorts(1, [self._remembered_port()])
        self._supervisor = processes.Supervisor()
        self.port = self._ports.numbers[0]

    @property
    def url(self) -> str:
        if self._security is None:
            return f"http://{local_brokers.HERE}:{self.port}"
        return f"https://{secure_home.bracketed(self._security.advertised_host or local_brokers.HERE)}:{self.port}"

    def start(self, bootstrap_servers: str) -> None:
        """Returns when it answers: the brokers have to run."""
        (self._home / REGISTRY_PORT_FILE).write_text(str(self.port))
        process = self._supervisor.start(self._program(bootstrap_servers))
        what = f"the schema registry at {self.url}"
        waiting.wait_until(lambda: processes.accepts_connections(self.port), what=what, processes=[process], say=self._say)

    def keep_up(self) -> None:
        """Starts it again if it has ended: `StackError` if it has ended too often."""
        self._supervisor.keep_up(self._say)

    def report(self) -> str:
        return self._supervisor.report()

    def stop(self) -> None:
        self._supervisor.end()
        self._ports.release()

    def _program(self, bootstrap_servers: str) -> processes.Program:
        options = ["--port", str(self.port), "--bootstrap-server", bootstrap_servers]
        if self._security is not None:
            host = local_brokers.HERE if self._security.advertised_host is None else self._security.every_interface
            file = self._security.client_file(secure_home.REGISTRY)
            options += ["--host", host, "--login", "--client-config", str(file)]
            options += ["--certificate", str(self._security.registry_certificate_path)]
        return processes.Program(
            name="registry",
            command=[sys.executable, "-m", "logbus", "registry", "serve", *options],
            environment=self._environment,
            directory=self._home / "run",
            working_directory=self._home,
        )

    def _remembered_port(self) -> int:
        try:
            return int((self._home / REGISTRY_PORT_FILE).read_text())
        except (OSError, ValueError):
            return REGISTRY_PORT


class LocalStack:
    """A stack in `home`. `project` is the directory that holds dags/ and plugins/; `environment` is passed to every program;
    `dags` is a DAGs folder to use instead of the project's. Several `brokers` form a cluster. `security` secures them; a home
    that was secured once is so again. `with_registry`: whether schemas are kept, too. `say` is told of long waits."""

    def __init__(
        self,
        home: Path,
        *,
        project: Path,
        environment: Mapping[str, str],
        ports: tuple[int, ...] = (),
        dags: Path | None = None,
        brokers: int = 1,
        security: secure_home.SecureHome | None = None,
        with_registry: bool = False,
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self.home = home.absolute()
        self.project = project.absolute()
        self.dags = dags and dags.absolute()
        self._environment = environment
        self._say = say
        self._airflow_supervisor = processes.Supervisor()
        self._postgres = EmbeddedPostgres(self.home / "postgres", say=say)
        preferred = remembered_ports(self.home, 1 + brokers) or ports[: 1 + brokers]
        self._ports = processes.ReservedPorts(1 + local_brokers.LocalBrokers.ports_needed(brokers), preferred)
        self._airflow_port, *broker_ports = self._ports.numbers
        # Only the brokers' ports: Airflow's address is printed at each start, and no environment variable holds it.
        self.moved = {before: now for before, now in zip(preferred[1:], broker_ports, strict=False) if before != now}
        before = secure_home.SecureHome(self.home)
        self.security = security or (before if before.is_there else None)
        self._brokers = local_brokers.LocalBrokers(
            self.home, count=brokers, environment=environment, ports=broker_ports, say=say, security=self.security
        )
        self.registry: LocalRegistry | None = None
        if with_registry:
            self.registry = LocalRegistry(self.home, environment=environment, security=self.security, say=say)
        self._airflow: local_airflow.AirflowInstance | None = None
        self._lock: int | None = None

    def __enter__(self) -> LocalStack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def warehouse_url(self) -> str:
        """As the role that loads (logbus.loads.roles)."""
        return self._postgres.url("logbus", roles.LOADER)

    @property
    def bootstrap_servers(self) -> str:
        return self._brokers.bootstrap_servers

    @property
    def zookeeper_connect(self) -> str | None:
        """The ZooKeeper that the brokers share; None for one broker."""
        return self._brokers.zookeeper_connect

    @property
    def client_config(self) -> dict[str, str]:
        """Of the administrator, if the brokers are secured."""
        return self._brokers.client_config

    @property
    def client_file(self) -> Path | None:
        """The same as a file; None where the address is all that is needed."""
        return None if self.security is None else self.security.client_file(secure_home.ADMIN)

    @property
    def airflow(self) -> local_airflow.AirflowInstance:
        if self._airflow is None:
            raise processes.StackError("Airflow is not started: call start_storage first")
        return self._airflow

    def start_storage(self) -> None:
        """Starts PostgreSQL, the brokers and the registry; returns when all answer."""
        self._lock = lock_home(self.home)
        (self.home / PORTS_FILE).write_text(json.dumps(self._ports.numbers))
        processes.end_leftovers(self.home / "run")
        self._postgres.start()
        warehouse, airflow = (connect(self._postgres.create_database(name)) for name in ("logbus", "airflow"))
        roles.prepare(warehouse, airflow)
        for administrator in (warehouse, airflow):
            administrator.dispose()
        self._brokers.start()
        if self.registry is not None:
            self.registry.start(self.bootstrap_servers)
        self._airflow = self._make_airflow()

    def start_airflow(self) -> None:
        """Starts Airflow, with its connections and the loads' pool; takes twenty seconds, so usually run in a thread."""
        self.airflow.start()
        self.airflow.api.ensure_pool(spark_submit.LOAD_POOL, 1, spark_submit.LOAD_POOL_DESCRIPTION)

    def notes(self) -> list[str]:
        """What a user of an earlier start should know: which brokers have another address now."""
        return [
            f"port {before} is taken by {processes.holder_of(before)}, so the broker is at {now} this time: "
            "terminals that were opened before have the old address"
            for before, now in self.moved.items()
        ]

    def raise_if_ended(self) -> None:
        """Raises an error that names the program if one has ended."""
        self._brokers.raise_if_ended()
        self._airflow_supervisor.raise_if_ended()
        self._postgres.raise_if_ended()

    def keep_up(self) -> None:
        """Starts again what has ended and others can do without meanwhile: parts of a cluster of brokers, the registry."""
        self._brokers.keep_up()
        if self.registry is not None:
            self.registry.keep_up()

    def renew_certificates(self) -> None:
        """Those that will not be valid for long."""
        if self.security is not None:
            self.security.renew()

    def report(self) -> str:
        """What runs, and what each program wrote last."""
        registry = "" if self.registry is None else self.registry.report()
        reports = [self._postgres.report(), self._brokers.report(), registry, self._airflow_supervisor.report()]
        return "\n".join(filter(None, reports))

    def stop(self) -> None:
        """Ends everything; does nothing if nothing runs. May be called at any time, even while a thread starts parts."""
        self._airflow_supervisor.end()
        if self.registry is not None:
            self.registry.stop()
        self._brokers.stop()
        self._postgres.stop()
        self._ports.release()
        if self._airflow is not None:
            self._airflow.api.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_airflow(self) -> local_airflow.AirflowInstance:
        airflow_home = self.home / "airflow"
        airflow_home.mkdir(exist_ok=True)
        settings = local_airflow.AirflowSettings(
            home=airflow_home,
            run_directory=self.home / "run",
            project=self.project,
            port=self._airflow_port,
            database_url=self._postgres.url("airflow", roles.AIRFLOW),
            connections=self._connections(),
            dags=self.dags,
            pages_warehouse_url=self._postgres.url("logbus", roles.UI),
        )
        return local_airflow.AirflowInstance(
            settings, self._environment, self._airflow_supervisor, processes=[self], say=self._say
        )

    def _connections(self) -> dict[str, dict[str, object]]:
        return {
            "kafka_default": {"conn_type": "kafka", "extra": self._airflow_client_config()},
            "warehouse_default": {
                "conn_type": provider.CONNECTION_TYPE,
                "host": str(self._postgres.socket_directory),
                "login": roles.LOADER,
                "schema": "logbus",
            },
            "spark_default": {"conn_type": "spark", "host": spark_submit.LOCAL_MASTER, "extra": {"deploy-mode": "client"}},
        }

    def _airflow_client_config(self) -> dict[str, str]:
        return self.client_config if self.security is None else self.security.client_config(secure_home.AIRFLOW)


def remembered_ports(home: Path, count: int) -> Sequence[int]:
    """The ports of the last start in this home, Airflow's first; none if it had fewer brokers, or the file is unreadable."""
    try:
        noted = json.loads((home / PORTS_FILE).read_text())
    except (OSError, ValueError):
        return ()
    is_ports = isinstance(noted, list) and all(isinstance(port, int) and 0 < port < 65_536 for port in noted)
    return noted[:count] if is_ports and len(noted) >= count else ()


def lock_home(home: Path) -> int:
    """Lock the directory for this process; the returned descriptor holds the lock, and the kernel frees it however we end."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise errors.UserError(f"cannot write in {home}: {error.strerror}; choose another place with --home") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise errors.UserError(
            f"another stack (process {owner}) runs in {home}: stop it, or choose another place with --home"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def project_directory() -> Path:
    """The checkout we run from: the directory with dags/ and plugins/ next to spark_jobs/."""
    spec = importlib.util.find_spec("logbus_spark")
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    project = Path(locations[0]).parents[1] if locations else Path()
    if not (project / "dags").is_dir() or not (project / "plugins").is_dir():
        raise errors.UserError(
            "there is no dags/ and plugins/ here: run from a checkout of the project (`uv sync` installs it in place)"
        )
    return project


def stay_up(stack: LocalStack, console: Console) -> None:
    """Until Ctrl-C, or until a part of the stack exits on its own that no other part replaces."""
    console.print("Everything stays up: Ctrl-C ends it.")
    try:
        while True:
            stack.keep_up()
            stack.raise_if_ended()
            stack.renew_certificates()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        console.print("Stopping everything ...")


def as_typed(program: Path) -> Path:
    """The shortest way to name a program from here."""
    here = Path.cwd()
    return program.relative_to(here) if program.is_relative_to(here) else program
