"""A small client of Airflow's public REST API: health, pools, DAG runs, their task instances and the end of their logs.

A request that reads is repeated until it is answered. One that changes something is sent once and its answer is waited for; it
is repeated only while nothing accepts the connection. So an api-server that is stopped, or starved by a busy machine, costs time
and nothing else. A refused request raises an `AirflowApiError` with Airflow's own explanation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from logbus.errors import LogbusError, NotInTime
from logbus.waiting import PATIENCE_SECONDS, Say, Watched, say_nothing, wait_until

ANSWER_SECONDS_MAX = 30.0  # then a request that reads is sent again, on a new connection
POLL_SECONDS = 0.5
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_NOW = frozenset({httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT})
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
    """Requests as the one administrator of a local instance. Safe to share between threads, as httpx's client is.

    `processes` are those that an answer depends on: a wait is over when one of them has ended. `say` is told of long waits.
    """

    def __init__(
        self,
        url: str,
        transport: httpx.BaseTransport | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        processes: Sequence[Watched] = (),
        say: Say = say_nothing,
    ) -> None:
        self.url = url
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
            ended = wait_until(
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
        headers = {"Authorization": f"Bearer {self._bearer()}", **arguments.pop("headers", {})}
        return self._answer(method, path, headers=headers, **arguments)

    def _answer(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """The response, however late it comes."""
        reads = method == "GET"
        if not reads:
            arguments["timeout"] = httpx.Timeout(ANSWER_SECONDS_MAX, read=self._patience_seconds)

        def ask() -> httpx.Response | None:
            response = self._client.request(method, path, **arguments)
            return None if reads and response.status_code in NOT_NOW else response

        try:
            return wait_until(
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

    def _bearer(self) -> str:
        if self._token is None:
            self._token = str(self._body(self._answer("GET", "/auth/token"))["access_token"])
        return self._token


def dag_run(fields: Mapping[str, Any]) -> ApiDagRun:
    return ApiDagRun(dag_id=fields["dag_id"], run_id=fields["dag_run_id"], state=fields["state"])


def log_line(entry: Any) -> str:
    """An entry of a structured log, or a plain line; very long ones (a command with eighty windows) are cut."""
    if not isinstance(entry, Mapping):
        return str(entry)[:LOG_LINE_CHARACTERS_MAX]
    details = "".join(f" {error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or [])
    return f"{entry.get('event', '')}{details}"[:LOG_LINE_CHARACTERS_MAX]
