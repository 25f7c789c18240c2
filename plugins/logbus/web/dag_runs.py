"""Airflow's Dag runs, through its own REST API inside this process and with the caller's own credentials.

So all of Airflow's rules apply: its permissions, its audit log, its checks. Nothing is read from or written to its tables here,
and no request leaves the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from airflow.providers.common.compat.sdk import conf
from fastapi import HTTPException, Request

from logbus.model import Interval, instant_text, parse_instant

RUNS_LOOKED_AT_MAX = 10
OVER = ("success", "failed")
CREDENTIALS = ("authorization", "cookie")
SCOPE_KEY = "logbus.airflow"  # where the plugin puts Airflow's own application for us


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """A run of a Dag. `interval` is None if it has no data interval."""

    dag_id: str
    run_id: str
    state: str
    interval: Interval | None

    @property
    def is_over(self) -> bool:
        return self.state in OVER


class AirflowRest:
    """Airflow's public API on behalf of the sender of `request`. A refusal keeps Airflow's own status and message."""

    def __init__(self, request: Request) -> None:
        headers = {name: request.headers[name] for name in CREDENTIALS if name in request.headers}
        transport = httpx.ASGITransport(app=request.scope[SCOPE_KEY])
        address = f"{request.url.scheme}://{request.url.netloc}{root_path()}"
        self._client = httpx.AsyncClient(transport=transport, base_url=address, headers=headers)

    async def runs_at(self, dag_id: str, start: datetime) -> list[DagRun]:
        """The runs whose logical date is that instant, which for runs over an interval is its start."""
        at = instant_text(start)
        return await self._runs(dag_id, {"logical_date_gte": at, "logical_date_lte": at, "order_by": "-run_after"})

    async def newest_runs(self, dag_id: str) -> list[DagRun]:
        return await self._runs(dag_id, {"order_by": "-run_after"})

    async def run(self, dag_id: str, run_id: str) -> DagRun | None:
        """None if Airflow has forgotten it."""
        response = await self._client.get(_runs_path(dag_id, run_id))
        return None if response.status_code == httpx.codes.NOT_FOUND else _to_run(body_of(response))

    async def clear(self, run: DagRun) -> None:
        """Runs every task of the run again."""
        body_of(await self._client.post(_runs_path(run.dag_id, run.run_id) + "/clear", json={"dry_run": False}))

    async def trigger(self, dag_id: str, fields: Mapping[str, Any]) -> DagRun:
        return _to_run(body_of(await self._client.post(_runs_path(dag_id), json={"logical_date": None, **fields})))

    async def _runs(self, dag_id: str, parameters: Mapping[str, Any]) -> list[DagRun]:
        response = await self._client.get(_runs_path(dag_id), params={"limit": RUNS_LOOKED_AT_MAX, **parameters})
        if response.status_code == httpx.codes.NOT_FOUND:
            return []
        return [_to_run(fields) for fields in body_of(response)["dag_runs"]]


def _runs_path(dag_id: str, run_id: str | None = None) -> str:
    path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"
    return path if run_id is None else f"{path}/{quote(run_id, safe='')}"


def body_of(response: httpx.Response) -> dict[str, Any]:
    """The response's JSON; an error of Airflow's becomes ours."""
    if response.is_error:
        raise HTTPException(_status_of(response.status_code), f"Airflow refused: {reason_of(response)}")
    return dict(response.json() or {}) if response.content else {}


def _status_of(code: int) -> int:
    """The status that we return for it: a body that Airflow rejects is not the caller's mistake, who sent none."""
    return code if code in (400, 401, 403, 404, 409) else 503


def reason_of(response: httpx.Response) -> str:
    try:
        detail = response.json().get("detail")
    except ValueError:
        detail = None
    return detail if isinstance(detail, str) else f"status {response.status_code}"


def _to_run(fields: Mapping[str, Any]) -> DagRun:
    start, end = (fields.get(name) for name in ("data_interval_start", "data_interval_end"))
    interval = Interval(parse_instant(start), parse_instant(end)) if start and end and start < end else None
    return DagRun(dag_id=fields["dag_id"], run_id=fields["dag_run_id"], state=str(fields["state"]), interval=interval)


def root_path() -> str:
    """The path below which Airflow is served; empty if none."""
    return urlsplit(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/")


def run_url(run_id: str, dag_id: str) -> str:
    """The page of a run in Airflow."""
    return f"{root_path()}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def log_url(dag_id: str | None, run_id: str, task_id: str | None, map_index: int | None, try_number: int) -> str | None:
    """The page of a task instance in Airflow, which shows its log; None if no task is known."""
    if dag_id is None or task_id is None:
        return None
    mapped = "" if map_index is None else f"/mapped/{map_index}"
    return f"{run_url(run_id, dag_id)}/tasks/{quote(task_id, safe='')}{mapped}?try_number={try_number}"
