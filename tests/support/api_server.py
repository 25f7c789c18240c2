"""Only Airflow's api-server, with real users and the DAGs of one folder: all that the pages need, up in half a minute.

There is no scheduler: triggered runs stay queued. Unlike in the demo, users are not administrators by default.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from logbus.cli.local_airflow import AirflowSettings, airflow_environment
from logbus.cli.processes import Program, ReservedPorts, Supervisor
from logbus.cli.stack import project_directory
from logbus.loads.embedded import EmbeddedPostgres
from logbus.provider import CONNECTION_TYPE
from logbus.waiting import PATIENCE_SECONDS, wait_until

BASE_PATH = "/team/airflow"  # behind a proxy that serves other applications at the root
USERS: Mapping[str, str] = {"admin": "admin", "olga": "op", "vic": "viewer"}  # each password is the name

# Airflow parses only files that contain these two words.
DAGS = """# airflow dag
from logbus.pipelines import Pipeline, hourly_ingest
for name, parse in {pipelines!r}.items():
    globals()[name] = hourly_ingest(Pipeline(name=name, topic=name, table=name, parse=parse))
"""


@dataclass
class ApiServer:
    """One api-server with its own database. `dags` are the files of its DAGs folder."""

    home: Path
    postgres: EmbeddedPostgres
    warehouse: str
    bootstrap: str
    dags: Mapping[str, str] = field(default_factory=dict)
    more_connections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=lambda: USERS)
    settings: Mapping[str, str] = field(default_factory=dict)  # further Airflow settings, by environment variable
    base_path: str = ""  # the path at which Airflow is served, such as /team/airflow

    def __enter__(self) -> ApiServer:
        self._ports = ReservedPorts(1)
        self._supervisor = Supervisor()
        self.url = f"http://127.0.0.1:{self._ports.numbers[0]}{self.base_path}"
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._supervisor.end()
        self._ports.release()

    def token(self, user: str) -> str:
        """The token that a logged-in browser has in its cookie."""
        answer = httpx.post(
            f"{self.url}/auth/token", json={"username": user, "password": user}, timeout=PATIENCE_SECONDS, trust_env=False
        )
        return str(answer.raise_for_status().json()["access_token"])

    def api(self, method: str, path: str, **arguments: Any) -> Any:
        """Airflow's own API, as the administrator."""
        headers = {"Authorization": f"Bearer {self.token('admin')}"}
        address = f"{self.url}/api/v2/{path}"
        answer = httpx.request(method, address, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False, **arguments)
        assert answer.is_success, answer.text
        return answer.json()

    def _start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        folder = self.home / "dags"
        folder.mkdir(exist_ok=True)
        for name, text in self.dags.items():
            (folder / name).write_text(text)
        self._environment = self._environment_of(folder)
        self._supervisor.run(self._program("migrate", "db", "migrate"), PATIENCE_SECONDS)
        if self.dags:
            self._supervisor.run(self._program("reserialize", "dags", "reserialize"), PATIENCE_SECONDS)
        server = self._supervisor.start(self._program("api-server", "api-server", "--workers", "1"))
        wait_until(self._answers, what="Airflow's api-server", processes=[server])

    def _environment_of(self, folder: Path) -> dict[str, str]:
        settings = AirflowSettings(
            home=self.home,
            run_directory=self.home / "run",
            project=project_directory(),
            port=self._ports.numbers[0],
            database_url=self.postgres.create_database(f"airflow_{self.home.name}".replace("-", "_")),
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": self.bootstrap}},
                "warehouse_default": {
                    "conn_type": CONNECTION_TYPE,
                    "host": str(self.postgres.socket_directory),
                    "login": "postgres",
                    "schema": self.warehouse,
                },
                **self.more_connections,
            },
        )
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({name: name for name in self.users}))
        return {
            **airflow_environment(settings, os.environ),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            **self.settings,
        }

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/version", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _program(self, name: str, *arguments: str) -> Program:
        return Program(
            name=f"airflow-{name}",
            command=[sys.executable, "-m", "airflow", *arguments],
            environment=self._environment,
            directory=self.home / "run",
            working_directory=self.home,
        )
