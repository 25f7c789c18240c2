"""Airflow as four supervised processes: api-server, scheduler, dag-processor and triggerer, started at the same time.

`airflow standalone` is one process that leaves its components running when it is ended, so each component is a separate process.
The database is the embedded PostgreSQL, the executor runs tasks as local processes. There is one user, an administrator, whose
password is made at the first start; and the api-server answers only to its own names, lest a website reach it by one of its own.
Configuration is passed by environment only; AIRFLOW_HOME holds logs, keys and the password, which survive a restart.

`AirflowApi` is a client of its public REST API: health, pools, DAG runs, their task instances and the end of their logs. A
request that reads is repeated until it is answered. One that changes something is sent once and its answer is waited for; it is
repeated only if it cannot have changed anything: while nothing accepts the connection, and after a deadlock, which PostgreSQL
ends by rolling it back. So an api-server that is stopped, or starved by a busy machine, costs time and nothing else. A refused
request raises an `AirflowApiError` with Airflow's own explanation.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import make_url

from logbus import atomic_write, model, provider, spark_submit, waiting
from logbus.cli.processes import Program, Supervisor
from logbus.errors import LogbusError, NotInTime

# What Airflow gives its own parts before it takes them for dead. Its defaults (5 s for an answer of the api-server, 30 s for the
# import of a DAG, 50 s for its file) are for machines of a data centre: on one that swaps they fail tasks that are well.
PATIENCE = {
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "1800",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "3600",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
    "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "600",
    "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "300",
}
USER = "admin"
PASSWORDS_FILE = "passwords.json"  # as Airflow's simple auth manager reads it
FERNET_KEY_BYTES = 32
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
    `dags` is the DAGs folder, by default the project's own; `pages_warehouse_url` names a role that may only read."""

    home: Path
    run_directory: Path
    project: Path
    port: int
    database_url: str
    connections: Mapping[str, Mapping[str, object]]
    dags: Path | None = None
    pages_warehouse_url: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """Of `USER`."""
        return kept_secrets(self.home / PASSWORDS_FILE, lambda: {USER: secrets.token_hex(8)})[USER]


def airflow_environment(settings: AirflowSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of every Airflow process and of the tasks and Spark drivers below them."""
    database = make_url(settings.database_url)
    programs = str(Path(sys.executable).parent)  # spark-submit, and the python of Spark's workers
    keys = kept_secrets(settings.home / "keys.json", new_keys)
    own = {
        **spark_submit.launcher_environment(inherited),
        "AIRFLOW_HOME": str(settings.home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.dags or settings.project / "dags"),
        # Otherwise a file without the word "airflow" in it, such as a one-line pipeline, is silently skipped.
        "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(settings.home / PASSWORDS_FILE),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__FERNET_KEY": keys["fernet_key"],
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{settings.url}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        provider.HOSTS_VARIABLE: ",".join([*HOSTS, *filter(None, [inherited.get(provider.HOSTS_VARIABLE)])]),
        "AIRFLOW__API__PORT": str(settings.port),
        # Otherwise an error of the database is "hidden" to the one user there is, and a deadlock looks like any other.
        "AIRFLOW__API__EXPOSE_STACKTRACE": "True",
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


def new_keys() -> dict[str, str]:
    """Of an instance: kept, so that tokens, sessions and what is encrypted in the database stay valid across a restart."""
    fernet_key = base64.urlsafe_b64encode(secrets.token_bytes(FERNET_KEY_BYTES)).decode()
    return {**{name: secrets.token_urlsafe(64) for name in ("jwt_secret", "api_secret_key")}, "fernet_key": fernet_key}


def kept_secrets(path: Path, make: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """The secrets of a file that only its owner can read; those that it lacks are made, once."""
    present = dict(json.loads(path.read_text())) if path.exists() else {}
    kept = {**make(), **present}
    if kept != present:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.replace_atomically(path, json.dumps(kept).encode(), mode=0o600)
    return kept


class AirflowInstance:
    """One Airflow, its components run by `supervisor`. `start` blocks until each has sent a heartbeat since this start.

    `processes` are others that it stands on; `say` is told of long waits."""

    def __init__(
        self,
        settings: AirflowSettings,
        environment: Mapping[str, str],
        supervisor: Supervisor,
        *,
        processes: Sequence[waiting.Watched] = (),
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self.settings = settings
        self.environment = airflow_environment(settings, environment)
        self._processes = [supervisor, *processes]
        self.api = AirflowApi(settings.url, settings.password, processes=self._processes, say=say)
        self._supervisor = supervisor
        self._say = say

    def start(self) -> None:
        started_at = model.utc_now()
        self._migrate()
        for name, arguments in COMPONENTS.items():
            self._supervisor.start(self._program(name, *arguments))
        waiting.wait_until(self.api.answers, what="Airflow's api-server", processes=self._processes, say=self._say)
        waiting.wait_until(lambda: self.api.is_healthy(started_at), what="Airflow", processes=self._processes, say=self._say)

    def _migrate(self) -> None:
        """Migrate the database to this Airflow. Airflow takes five seconds to find nothing to do, so success is recorded."""
        migrated = self.settings.home / "migrated"
        current = f"{version('apache-airflow')} {self.settings.database_url}\n"
        if not migrated.exists() or migrated.read_text() != current:
            with waiting.announced("the migration of Airflow's database", self._say):
                self._supervisor.run(self._program("migrate", "db", "migrate"), waiting.PATIENCE_SECONDS)
            migrated.write_text(current)

    def _program(self, name: str, *arguments: str) -> Program:
        url = self.settings.pages_warehouse_url
        of_pages = {provider.PAGES_WAREHOUSE_VARIABLE: url} if url is not None and name == "api-server" else {}
        return Program(
            name=f"airflow-{name}",
            command=[sys.executable, "-m", "airflow", *arguments],
            environment={**self.environment, **of_pages},
            directory=self.settings.run_directory,
            working_directory=self.settings.home,
            grace_seconds=GRACE_SECONDS_BY_COMPONENT.get(name, GRACE_SECONDS),
        )


ANSWER_SECONDS_MAX = 30.0  # then a request that reads is sent again, on a new connection
POLL_SECONDS = 0.5
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_NOW = frozenset({httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT})
# The api-server locks the tasks of a run before the run, the scheduler the run before its tasks: of two that deadlock, PostgreSQL
# rolls one back. The scheduler does it again by itself, the api-server does not.
DEADLOCK = "deadlock detected"
RUNS_MAX = 100
RUN_OVER_STATES = frozenset({"success", "failed"})
HEARTBEATS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}
LOG_TAIL_LINES = 40
LOG_LINE_CHARACTERS_MAX = 400


class AirflowApiError(LogbusError):
    """Airflow refused a request."""


class RunFailed(LogbusError):
    """A DAG run ended in failure; the message holds the end of the failed task's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDagRun:
    """One DAG run, as Airflow's API returns it."""

    dag_id: str
    run_id: str
    state: str


class AirflowApi:
    """Requests as the one user of a local instance. Safe to share between threads, as httpx's client is.

    `processes` are those that an answer depends on: a wait is over when one of them has ended. `say` is told of long waits.
    """

    def __init__(
        self,
        url: str,
        password: str,
        transport: httpx.BaseTransport | None = None,
        *,
        patience_seconds: float = waiting.PATIENCE_SECONDS,
        processes: Sequence[waiting.Watched] = (),
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self.url = url
        self._password = password
        self._patience_seconds = patience_seconds
        self._processes = processes
        self._say = say
        # trust_env: a proxy configured for the internet must not be used for 127.0.0.1.
        self._client = httpx.Client(base_url=url, timeout=ANSWER_SECONDS_MAX, trust_env=False, transport=transport)
        self._token: str | None = None

    def close(self) -> None:
        self._client.close()

    def answers(self) -> bool:
        """The api-server serves tasks. It takes five seconds to prepare for the first such request: better while the other
        components start than when the first task does."""
        try:
            return self._client.get("/execution/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def is_healthy(self, since: datetime) -> bool:
        """Every component has sent a heartbeat after `since`; a database used before still holds those of the last start."""
        try:
            health = self._client.get("/api/v2/monitor/health").raise_for_status().json()
        except httpx.HTTPError:
            return False
        heartbeats = [health.get(component, {}).get(name) for component, name in HEARTBEATS.items()]
        return all(beat is not None and datetime.fromisoformat(beat) > since for beat in heartbeats)

    def has_dag(self, dag_id: str) -> bool:
        """The DAG has been parsed and is not broken."""
        response = self._send("GET", f"/api/v2/dags/{dag_id}")
        return response.status_code == httpx.codes.OK and not response.json()["is_stale"]

    def import_errors(self) -> list[str]:
        errors = self.request("GET", "/api/v2/importErrors")["import_errors"]
        return [f"{error['filename']}:\n{error['stack_trace']}" for error in errors]

    def ensure_pool(self, name: str, slots: int, description: str) -> None:
        pool = {"name": name, "slots": slots, "description": description, "include_deferred": False}
        response = self._send("POST", "/api/v2/pools", json=pool)
        if response.status_code == httpx.codes.CONFLICT:
            response = self._send("PATCH", f"/api/v2/pools/{name}", json=pool)
        self._body(response)

    def trigger(self, dag_id: str, **fields: Any) -> ApiDagRun:
        """Start a run. Airflow silently drops data_interval_* if logical_date is missing, so pass both or neither."""
        return dag_run(self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None, **fields}))

    def unpause(self, dag_id: str) -> None:
        self.request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        self.request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": True})

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Run every task of a run again, in the same run."""
        self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/clear", json={"dry_run": False})

    def runs(self, dag_id: str, logical_date: str | None = None) -> list[ApiDagRun]:
        """The DAG's runs, newest first (at most a hundred); only those of one logical date if it is given."""
        at = {"logical_date_gte": logical_date, "logical_date_lte": logical_date} if logical_date else {}
        parameters = {"order_by": "-run_after", "limit": RUNS_MAX, **at}
        return [
            dag_run(fields) for fields in self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns", params=parameters)["dag_runs"]
        ]

    def give_up_active_runs(self, dag_id: str) -> None:
        """Fail what a killed Airflow left running: Airflow does that too, but only once the heartbeats time out."""
        for run in self.runs(dag_id):
            if run.state not in RUN_OVER_STATES:
                self.request("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run.run_id}", json={"state": "failed"})

    def run(self, dag_id: str, run_id: str) -> ApiDagRun:
        return dag_run(self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"))

    def task_instances(self, run: ApiDagRun) -> list[dict[str, Any]]:
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances"
        return list(self.request("GET", path)["task_instances"])

    def xcom(self, run: ApiDagRun, task_id: str, key: str = "return_value") -> Any:
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.request("GET", path, params={"deserialize": True})["value"]

    def wait(self, run: ApiDagRun, timeout_seconds: float) -> ApiDagRun:
        """Wait for the run's end; a run that fails, or does not end in time, raises an error with the story of its tasks."""

        def over() -> ApiDagRun | None:
            now = self.run(run.dag_id, run.run_id)
            return now if now.state in RUN_OVER_STATES else None

        try:
            ended = waiting.wait_until(
                over,
                what=f"the end of {run.dag_id} {run.run_id}",
                timeout_seconds=timeout_seconds,
                poll_seconds=POLL_SECONDS,
                processes=self._processes,
                say=self._say,
            )
        except NotInTime as error:
            raise NotInTime(f"{error}\n{self.story(run)}\nto see it: {self.url}/dags/{run.dag_id}/runs/{run.run_id}") from None
        if ended.state == "failed":
            raise RunFailed(f"{run.dag_id} {run.run_id} failed\n{self.story(run)}")
        return ended

    def story(self, run: ApiDagRun) -> str:
        """The state of each task, and the end of the log of those that failed."""
        tasks = self.task_instances(run)
        states = ", ".join(f"{task['task_id']} {task['state']}" for task in tasks)
        logs = [self.log_tail(run, task) for task in tasks if task["state"] in {"failed", "up_for_retry"}]
        return "\n".join([states, *logs])

    def log_tail(self, run: ApiDagRun, task: Mapping[str, Any]) -> str:
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task['task_id']}/logs/{max(1, task['try_number'])}"
        content = self.request("GET", path, headers={"Accept": "application/json"})["content"]
        lines = [log_line(entry) for entry in content]
        return "\n".join([f"--- {task['task_id']}, the end of its log", *lines[-LOG_TAIL_LINES:]])

    def request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        return self._body(self._send(method, path, **arguments))

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token()}", **arguments.pop("headers", {})}
        return self._answer(method, path, reads=method == "GET", headers=headers, **arguments)

    def _answer(self, method: str, path: str, *, reads: bool, **arguments: Any) -> httpx.Response:
        """The response, however late it comes. A request is sent again if it only reads, or cannot have changed anything."""
        if not reads:
            arguments["timeout"] = httpx.Timeout(ANSWER_SECONDS_MAX, read=self._patience_seconds)

        def ask() -> httpx.Response | None:
            response = self._client.request(method, path, **arguments)
            was_rolled_back = response.is_server_error and DEADLOCK in response.text
            return None if was_rolled_back or (reads and response.status_code in NOT_NOW) else response

        try:
            return waiting.wait_until(
                ask,
                what=f"an answer of Airflow at {self.url}",
                timeout_seconds=self._patience_seconds,
                not_yet=httpx.TransportError if reads else NOT_SENT,
                processes=self._processes,
                say=self._say,
            )
        except httpx.TransportError as error:
            raise AirflowApiError(
                f"Airflow at {self.url} was sent {method} {path} and did not answer: {error}. Look there whether it was done"
            ) from error

    def _body(self, response: httpx.Response) -> dict[str, Any]:
        if response.is_error:
            raise AirflowApiError(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")
        return dict(response.json() or {}) if response.content else {}

    def token(self) -> str:
        """For the header `Authorization: Bearer`, or for a browser's cookie."""
        if self._token is None:
            login = {"username": USER, "password": self._password}
            self._token = str(self._body(self._answer("POST", "/auth/token", reads=True, json=login))["access_token"])
        return self._token


def dag_run(fields: Mapping[str, Any]) -> ApiDagRun:
    return ApiDagRun(dag_id=fields["dag_id"], run_id=fields["dag_run_id"], state=fields["state"])


def log_line(entry: Any) -> str:
    """An entry of a structured log, or a plain line; very long ones (a command with eighty windows) are cut."""
    if not isinstance(entry, Mapping):
        return str(entry)[:LOG_LINE_CHARACTERS_MAX]
    details = "".join(f" {error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or [])
    return f"{entry.get('event', '')}{details}"[:LOG_LINE_CHARACTERS_MAX]
