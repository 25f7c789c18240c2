"""One pipeline and one window for the pages that show them; and Airflow's Dag runs, through its own REST API inside this process
and with the caller's own credentials.

For Dag runs all of Airflow's rules apply: its permissions, its audit log, its checks. Nothing is read from or written to its
tables here, and no request leaves the process.

A pipeline: its definition, its progress, its recent hours and attempts, its aggregates and streams. A window: what `logbus window
show` prints, the equation, dead letters by shape, with samples.
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
from sqlalchemy import Engine

from logbus.loads import dead_letters, ledger
from logbus.loads.history import AttemptRecord, WindowHistory
from logbus.model import FrozenWindow, Interval, Pipeline, instant_text, parse_instant
from logbus.status import ledger_facts
from logbus.streams import aggregate_listing as aggregates
from logbus.streams import listing as streams

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
    if isinstance(detail, Mapping):  # of an error of Airflow's database
        detail = detail.get("reason")
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


# One pipeline and one window for the pages that show them.


HOURS_SHOWN = 168
ATTEMPTS_SHOWN = 20


def pipeline_detail(engine: Engine, name: str) -> dict[str, Any]:
    """As JSON-ready values. `hours` are columns by their name, one value for each of the newest loaded hours."""
    pipeline = ledger.Ledger(engine).pipeline(name)
    with engine.connect() as connection:
        hours = ledger_facts.loaded_hours(connection, name, HOURS_SHOWN)
        attempts = ledger_facts.recent_attempts(connection, name, ATTEMPTS_SHOWN)
        dead = ledger_facts.dead_letter_classes(connection, name, hours[0].start) if hours else []
    columns = {column: [getattr(hour, column) for hour in hours] for column in ("read", "dead_lettered", "late", "seconds")}
    return {
        "pipeline": _definition_json(pipeline),
        "hours": {"start": [instant_text(hour.start) for hour in hours], **columns},
        "dead_letters": dead,
        "attempts": [_with_log_url(attempt) for attempt in attempts],
    }


def computed_detail(engine: Engine, name: str, log_ends: Mapping[int, int] | None, now: datetime) -> dict[str, Any]:
    """The aggregates and streams of a pipeline, as JSON-ready values. Without `log_ends` the lag of streams is unknown."""
    with engine.connect() as connection:
        of_streams = streams.all_statuses(connection, now, name)
        of_aggregates = aggregates.all_statuses(connection, name)
    return {
        "aggregates": [{**status.summary(), "words": status.aggregate.words()} for status in of_aggregates],
        "streams": [{**status.summary(status.lag(log_ends)), "words": status.stream.words()} for status in of_streams],
    }


def _with_log_url(attempt: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dag_id", "run_id", "task_id", "map_index", "try_number")
    return {**attempt, "log_url": log_url(**{name: attempt[name] for name in names})}


def _definition_json(pipeline: Pipeline) -> dict[str, Any]:
    """What the DAG's author defined, and the columns that are known: declared, or inferred if the pipeline infers them."""
    settings = {name: value for name, value in pipeline.settings.items() if name != "columns"}
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "parse": pipeline.parse,
        "sink": pipeline.options.sink,
        "interval_seconds": int(pipeline.interval.total_seconds()),
        "timezone": pipeline.timezone,
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        "settings": settings,
        "columns": dict(pipeline.options.columns),
    }


def window_detail(engine: Engine, history: WindowHistory) -> dict[str, Any]:
    """As JSON-ready values: the history's own, and what else the page needs."""
    with engine.connect() as connection:
        shapes = dead_letters.shapes_of(connection, history.window.id)
        stay = dead_letters.dead_by_partition(connection, history.window.id)
    summary = history.summary()
    letters = {
        "total": sum(history.dead_letters.values()),
        "by_error": [{"error_class": name, "count": count} for name, count in history.dead_letters.items()],
        "shapes": [shape.summary() for shape in shapes],
    }
    return {
        **summary,
        "attempts": [_with_log_url(attempt) for attempt in summary["attempts"]],
        "equation": equation(history.window),
        "ranges": _ranges_json(history, stay),
        "dead_letters": letters,
        "audit": {"audited_at": summary["audited_at"], "problems": summary["audit_problems"]},
    }


def equation(window: FrozenWindow) -> dict[str, Any] | None:
    """read = loaded + dead-lettered + filtered, and whether it holds; None if nothing is loaded."""
    counts = window.counts
    if counts is None:
        return None
    return {
        "read": counts.read,
        "loaded": counts.loaded,
        "dead_lettered": counts.dead_lettered,
        "filtered": counts.filtered,
        "holds": counts.read == counts.loaded + counts.dead_lettered + counts.filtered,
    }


def _ranges_json(history: WindowHistory, stay: Mapping[int, int]) -> list[dict[str, Any]]:
    """By partition. `stay` are dead letters that are still there; what a redrive moved counts as loaded."""
    window = history.window
    attempt = None if window.loaded_attempt is None else history.attempt(window.loaded_attempt)
    loaded = _loaded_by_partition(window, attempt, stay)
    return [
        {
            "partition": part.partition,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "count": part.count,
            "lost": part.lost,
            "loaded": loaded.get(part.partition),
            "dead_lettered": stay.get(part.partition, 0) if window.counts else None,
            "first_timestamp": first and instant_text(first),
            "last_timestamp": last and instant_text(last),
        }
        for part in window.ranges
        for first, last in [history.spans.get(part.partition, (None, None))]
    ]


def _loaded_by_partition(window: FrozenWindow, attempt: AttemptRecord | None, stay: Mapping[int, int]) -> dict[int, int]:
    """Rows of each partition; empty if they do not add up to the window's, because a redrive left some out on purpose."""
    if window.is_proven_empty:
        return {part.partition: 0 for part in window.ranges}
    if attempt is None or attempt.partitions is None or window.counts is None:
        return {}
    read_by_partition = {int(part): tally["loaded"] + tally["dead_lettered"] for part, tally in attempt.partitions.items()}
    loaded_by_part = {
        part.partition: read_by_partition.get(part.partition, 0) - stay.get(part.partition, 0) for part in window.ranges
    }
    return loaded_by_part if sum(loaded_by_part.values()) == window.counts.loaded else {}
