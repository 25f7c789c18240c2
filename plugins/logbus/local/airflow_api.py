"""A small client of Airflow's public REST API: health, pools, DAG runs, their task instances and the end of their logs.

Transport errors count as "not yet" only where the caller polls for readiness; anywhere else a refused request raises an
`AirflowApiError` with Airflow's own explanation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from logbus.errors import LogbusError

REQUEST_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.5
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
    """Airflow refused a request, or a run did not end in time."""


class RunFailed(LogbusError):
    """A DAG run ended in failure; the message holds the end of the failed task's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDagRun:
    """One DAG run, as Airflow's API returns it."""

    dag_id: str
    run_id: str
    state: str


class AirflowApi:
    """Requests as the one administrator of a local instance. Safe to share between threads, as httpx's client is."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        # trust_env: a proxy configured for the internet must not be used for 127.0.0.1.
        self._client = httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False, transport=transport)
        self._token: str | None = None

    def close(self) -> None:
        self._client.close()

    def answers(self) -> bool:
        try:
            return self._client.get("/api/v2/version").status_code == httpx.codes.OK
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

    def wait(self, run: ApiDagRun, timeout_seconds: float, alive: Callable[[], None] = lambda: None) -> ApiDagRun:
        """Wait for the run's end; `alive` is called at every poll and raises if waiting has become pointless."""
        deadline = time.monotonic() + timeout_seconds
        while (now := self.run(run.dag_id, run.run_id)).state not in RUN_OVER_STATES:
            alive()
            if time.monotonic() > deadline:
                story = self.story(now)
                raise AirflowApiError(f"{now.dag_id} {now.run_id} is still {now.state} after {timeout_seconds:.0f} s\n{story}")
            time.sleep(POLL_SECONDS)
        if now.state == "failed":
            raise RunFailed(f"{now.dag_id} {now.run_id} failed\n{self.story(now)}")
        return now

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
        headers = {"Authorization": f"Bearer {self._bearer()}", **arguments.pop("headers", {})}
        try:
            return self._client.request(method, path, headers=headers, **arguments)
        except httpx.TransportError as error:
            raise AirflowApiError(f"Airflow at {self.url} does not answer: {error}") from error

    def _body(self, response: httpx.Response) -> dict[str, Any]:
        if response.is_error:
            raise AirflowApiError(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")
        return dict(response.json() or {}) if response.content else {}

    def _bearer(self) -> str:
        if self._token is None:
            self._token = str(self._client.get("/auth/token").raise_for_status().json()["access_token"])
        return self._token


def dag_run(fields: Mapping[str, Any]) -> ApiDagRun:
    return ApiDagRun(dag_id=fields["dag_id"], run_id=fields["dag_run_id"], state=fields["state"])


def log_line(entry: Any) -> str:
    """An entry of a structured log, or a plain line; very long ones (a command with eighty windows) are cut."""
    if not isinstance(entry, Mapping):
        return str(entry)[:LOG_LINE_CHARACTERS_MAX]
    details = "".join(f" {error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or [])
    return f"{entry.get('event', '')}{details}"[:LOG_LINE_CHARACTERS_MAX]
