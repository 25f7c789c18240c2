"""Airflow as four supervised processes: api-server, scheduler, dag-processor and triggerer, started at the same time.

`airflow standalone` is one process that leaves its components running when it is ended, so each component is a separate process.
The database is the embedded PostgreSQL, the executor runs tasks as local processes, and any user who reaches the port on
127.0.0.1 is an administrator; so the api-server answers only to its own names, lest a website reach it by one of the site's.
Configuration is passed by environment only; AIRFLOW_HOME holds logs and keys, which survive a restart.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import make_url

from logbus.local.airflow_api import AirflowApi
from logbus.local.processes import Program, Supervisor
from logbus.model import utc_now
from logbus.provider import HOSTS_VARIABLE
from logbus.spark_submit import launcher_environment
from logbus.waiting import PATIENCE_SECONDS, Say, Watched, announced, say_nothing, wait_until

# What Airflow gives its own parts before it takes them for dead. Its defaults (5 s for an answer of the api-server, 30 s for the
# import of a DAG, 50 s for its file) are for machines of a data centre: on one that swaps they fail tasks that are well.
PATIENCE = {
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "1800",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "3600",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
    "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "600",
}
# No website can make these its own.
HOSTS = ("127.0.0.1", "localhost")
PARALLELISM = 4  # the executor forks a worker for each: the default of 32 costs a gigabyte
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--workers", "1"),
    # Task logs are on this disk, where the api-server reads them: no log servers, whose ports could collide.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# Running tasks and triggers are resumed from the database, so the end need not wait for them. The triggerer, even if idle, would
# take more than ten seconds to end after SIGTERM.
GRACE_SECONDS = 4.0
GRACE_SECONDS_BY_COMPONENT = {"triggerer": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowSettings:
    """The settings of an instance. `database_url` may name any PostgreSQL driver; `connections` are by Airflow's connection ids;
    `dags` is the DAGs folder, by default the project's own."""

    home: Path
    run_directory: Path
    project: Path
    port: int
    database_url: str
    connections: Mapping[str, Mapping[str, object]]
    dags: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def airflow_environment(settings: AirflowSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of every Airflow process and of the tasks and Spark drivers below them."""
    database = make_url(settings.database_url)
    programs = str(Path(sys.executable).parent)  # spark-submit, and the python of Spark's workers
    keys = instance_keys(settings.home / "keys.json")
    own = {
        **launcher_environment(inherited),
        "AIRFLOW_HOME": str(settings.home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.dags or settings.project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.project / "plugins"),
        # Otherwise a file without the word "airflow" in it, such as a one-line pipeline, is silently skipped.
        "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{settings.url}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        HOSTS_VARIABLE: ",".join([*HOSTS, *filter(None, [inherited.get(HOSTS_VARIABLE)])]),
        "AIRFLOW__API__PORT": str(settings.port),
        "AIRFLOW__API__BASE_URL": settings.url,
        "AIRFLOW__API__SECRET_KEY": keys["api_secret_key"],
        "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt_secret"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": unmasked(database.set(drivername="postgresql+psycopg2")),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": unmasked(database.set(drivername="postgresql+asyncpg")),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # A changed file is still parsed at once; parsing every file again each 30 seconds would keep a core busy.
        # The watcher of a DAG that is unpaused begins with the next parsing.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        **PATIENCE,
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "PATH": os.pathsep.join([programs, inherited.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
    }
    connections = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in settings.connections.items()}
    return {**without_airflow(inherited), **own, **connections}


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's own Airflow settings (another instance's database, say)."""
    return {name: value for name, value in environment.items() if not name.startswith("AIRFLOW")}


def unmasked(url: object) -> str:
    return url.render_as_string(hide_password=False)  # type: ignore[attr-defined,no-any-return]


def instance_keys(path: Path) -> dict[str, str]:
    """Keys of this instance, generated once, so that tokens and sessions stay valid across a restart."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = {name: secrets.token_urlsafe(64) for name in ("jwt_secret", "api_secret_key")}
        path.touch(mode=0o600)
        path.write_text(json.dumps(keys))
    return dict(json.loads(path.read_text()))


class AirflowInstance:
    """One Airflow, its components run by `supervisor`. `start` blocks until each has sent a heartbeat since this start.

    `processes` are others that it stands on; `say` is told of long waits."""

    def __init__(
        self,
        settings: AirflowSettings,
        environment: Mapping[str, str],
        supervisor: Supervisor,
        *,
        processes: Sequence[Watched] = (),
        say: Say = say_nothing,
    ) -> None:
        self.settings = settings
        self.environment = airflow_environment(settings, environment)
        self._processes = [supervisor, *processes]
        self.api = AirflowApi(settings.url, processes=self._processes, say=say)
        self._supervisor = supervisor
        self._say = say

    def start(self) -> None:
        started_at = utc_now()
        self._migrate()
        for name, arguments in COMPONENTS.items():
            self._supervisor.start(self._program(name, *arguments))
        wait_until(self.api.answers, what="Airflow's api-server", processes=self._processes, say=self._say)
        wait_until(lambda: self.api.is_healthy(started_at), what="Airflow", processes=self._processes, say=self._say)

    def _migrate(self) -> None:
        """Migrate the database to this Airflow. Airflow takes five seconds to find nothing to do, so success is recorded."""
        migrated = self.settings.home / "migrated"
        wanted = f"{version('apache-airflow')} {self.settings.database_url}\n"
        if not migrated.exists() or migrated.read_text() != wanted:
            with announced("the migration of Airflow's database", self._say):
                self._supervisor.run(self._program("migrate", "db", "migrate"), PATIENCE_SECONDS)
            migrated.write_text(wanted)

    def _program(self, name: str, *arguments: str) -> Program:
        return Program(
            name=f"airflow-{name}",
            command=[sys.executable, "-m", "airflow", *arguments],
            environment=self.environment,
            directory=self.settings.run_directory,
            working_directory=self.settings.home,
            grace_seconds=GRACE_SECONDS_BY_COMPONENT.get(name, GRACE_SECONDS),
        )
