"""What somebody may do about a window: rerun it, redrive its dead letters, look at the plan of a replay.

Nothing is done here: a rerun clears the Dag run that stands for the window, a redrive triggers the Dag `logbus_redrive`, both
through Airflow's own API and with the caller's rights, so Airflow's history and audit log tell it and its workers do it. No
parser of anybody's runs in the api-server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from logbus.ledger.ledger import Ledger
from logbus.model import Interval, instant_text
from logbus.proof.history import WindowHistory, window_history
from logbus.status import replay
from logbus.status.replay import Span
from logbus.ui import access
from logbus.ui.dag_runs import AirflowRest, DagRun, run_url
from logbus.ui.request_context import ContextDep, RequestContext, answer, told, wanted_instant

REDRIVE_DAG = "logbus_redrive"
SINK_WITH_ROWS = "postgres"  # the one that is changed row by row

router = APIRouter(prefix="/api/windows/{pipeline}/{start}")


class Target:
    """The window that a request is about, which the caller may see, and the Dags of its pipeline that he may see."""

    def __init__(self, context: ContextDep, pipeline: str, start: str) -> None:
        with told():
            engine = context.source.engine()
            self.dag_ids = access.refuse_unseen(engine, pipeline, context.user)
            self.history: WindowHistory = window_history(engine, pipeline, wanted_instant(start))
            self.sink = Ledger(engine).pipeline(pipeline).options.sink
        self.context = context

    @property
    def interval(self) -> Interval:
        return self.history.window.interval

    @property
    def pipeline(self) -> str:
        return self.history.window.pipeline


TargetDep = Annotated[Target, Depends()]


def possible(target: Target, request: Request) -> list[dict[str, Any]]:
    """The actions, each allowed or not, and why not."""
    hour = instant_text(target.interval.start)
    rows = (
        ("rerun", "POST", "Rerun", why_no_rerun(target), f"Load {hour} again? The same records replace the rows that are there."),
        ("redrive", "POST", "Redrive dead letters", why_no_redrive(target), f"Parse the dead letters of {hour} again?"),
        ("replay_plan", "GET", "Replay plan", None, None),
    )
    return [
        {
            "name": name,
            "label": label,
            "allowed": why_not is None,
            "why_not": why_not,
            "method": method,
            "href": href(target, request, name),
            "confirm": confirm,
        }
        for name, method, label, why_not, confirm in rows
    ]


def href(target: Target, request: Request, name: str) -> str:
    """The action's own address, with the connections that the page is about."""
    connections = {"warehouse_conn_id": target.context.warehouse_conn_id, "kafka_conn_id": target.context.kafka_conn_id}
    start = quote(instant_text(target.interval.start), safe=":")
    root = request.scope.get("root_path", "")
    return f"{root}/api/windows/{quote(target.pipeline, safe='')}/{start}/{name}?{urlencode(connections)}"


def why_no_rerun(target: Target) -> str | None:
    if not target.dag_ids:
        return f"no Dag works on this pipeline; {by_hand(target)}"
    if not dags_allowed(target, "PUT"):
        return f"you may not clear runs of {' or '.join(target.dag_ids)}: ask whoever runs Airflow for the right to"
    # Which of several Dags has the run is asked of Airflow when it is wanted; here it is enough that one of them could.
    idle = [why_idle(dag_id) for dag_id in dags_allowed(target, "PUT")]
    return idle[0] if all(idle) else None


def why_no_redrive(target: Target) -> str | None:
    counts = target.history.window.counts
    if counts is None:
        return "the window is not loaded: rerun it"
    if not counts.dead_lettered:
        return "the window has no dead letters"
    if target.sink != SINK_WITH_ROWS:
        return f"files of {target.sink} are not changed row by row: rerun the hour, which parses everything again"
    if target.dag_ids and not dags_allowed(target, "POST"):
        return f"you may not trigger runs of {' or '.join(target.dag_ids)}: ask whoever runs Airflow for the right to"
    if not access.may_change_runs(target.context.user, REDRIVE_DAG, "POST"):
        return f"you may not trigger runs of {REDRIVE_DAG}: ask whoever runs Airflow for the right to"
    return why_idle(REDRIVE_DAG)


def why_idle(dag_id: str) -> str | None:
    """Why Airflow would start nothing of a Dag that somebody may run."""
    is_paused = access.is_paused(dag_id)
    if is_paused is None:
        where = ": dags/redrive.py makes it, put it into Airflow's dags folder" if dag_id == REDRIVE_DAG else ""
        return f"Airflow has no Dag {dag_id}{where}"
    return f"the Dag {dag_id} is paused: switch it on, or `airflow dags unpause {dag_id}`" if is_paused else None


def dags_allowed(target: Target, method: str) -> list[str]:
    """The Dags of the pipeline whose runs the caller may change; that of the last attempt first."""
    last = [attempt.task.dag_id for attempt in reversed(target.history.attempts) if attempt.task is not None]
    ordered = sorted(target.dag_ids, key=lambda dag_id: last.index(dag_id) if dag_id in last else len(last))
    return [dag_id for dag_id in ordered if access.may_change_runs(target.context.user, dag_id, method)]


def by_hand(target: Target) -> str:
    return f"`{command_of(target)}` loads it"


def command_of(target: Target) -> str:
    return f"logbus replay run --pipeline {target.pipeline} --window {instant_text(target.interval.start)}"


@router.post("/rerun", dependencies=[Depends(access.refuse_foreign)])
async def rerun(request: Request, target: TargetDep) -> Response:
    """Clears the Dag run that stands for the window; where there is none, asks for one."""
    allowed = await run_in_threadpool(dags_allowed, target, "PUT")
    if not allowed:
        why_not = await run_in_threadpool(why_no_rerun, target)
        raise HTTPException(403 if target.dag_ids else 409, why_not)
    airflow = AirflowRest(request)
    if (found := await run_of(airflow, target, allowed)) is not None:
        await refuse_idle_dag(found.dag_id)
        if not found.is_over:
            raise HTTPException(409, f"run {found.run_id} of {found.dag_id} is {found.state}: wait for its end, then rerun it")
        await airflow.clear(found)
        return done("the run of this hour begins anew", found)
    if (dag_id := await hourly_dag(airflow, target, allowed)) is not None:
        await refuse_idle_dag(dag_id)
        return done("a run for this hour was asked for", await airflow.trigger(dag_id, fields_of(target.interval)))
    raise HTTPException(409, f"no run of {' or '.join(allowed)} stands for this hour alone; {by_hand(target)}")


async def run_of(airflow: AirflowRest, target: Target, dag_ids: Sequence[str]) -> DagRun | None:
    """The run whose data interval is the window. A run that loaded it beside its own hour, or among many, is not it."""
    found = [run for dag_id in dag_ids for run in await airflow.runs_at(dag_id, target.interval.start)]
    for attempt in reversed(target.history.attempts):
        if attempt.task is not None and attempt.task.dag_id in dag_ids:
            run = await airflow.run(attempt.task.dag_id, attempt.run_id)
            found += [run] if run is not None else []
    return next((run for run in found if run.interval == target.interval), None)


async def hourly_dag(airflow: AirflowRest, target: Target, dag_ids: Sequence[str]) -> str | None:
    """A Dag whose runs stand for spans as long as the window."""
    length = target.interval.end - target.interval.start
    for dag_id in dag_ids:
        runs = await airflow.newest_runs(dag_id)
        if any(run.interval is not None and run.interval.end - run.interval.start == length for run in runs):
            return dag_id
    return None


def fields_of(interval: Interval) -> dict[str, str]:
    """A run over an interval of the past, as Airflow's API takes it."""
    start, end = instant_text(interval.start), instant_text(interval.end)
    return {"logical_date": start, "data_interval_start": start, "data_interval_end": end, "run_after": end}


@router.post("/redrive", dependencies=[Depends(access.refuse_foreign)])
async def redrive(request: Request, target: TargetDep) -> Response:
    """Triggers the Dag that parses the window's dead letters again and audits it."""
    why_not = await run_in_threadpool(why_no_redrive, target)
    if why_not is not None:
        raise HTTPException(403 if why_not.startswith("you may not") else 409, why_not)
    conf = {
        "pipeline": target.pipeline,
        "start": instant_text(target.interval.start),
        "kafka_conn_id": target.context.kafka_conn_id,
        "warehouse_conn_id": target.context.warehouse_conn_id,
    }
    return done("the dead letters are being parsed again", await AirflowRest(request).trigger(REDRIVE_DAG, {"conf": conf}))


async def refuse_idle_dag(dag_id: str) -> None:
    """409 where Airflow would start nothing."""
    if (why_not := await run_in_threadpool(why_idle, dag_id)) is not None:
        raise HTTPException(409, why_not)


def done(message: str, run: DagRun) -> Response:
    url = run_url(run.run_id, run.dag_id)
    return answer({"ok": True, "message": message, "dag_id": run.dag_id, "run_id": run.run_id, "url": url})


@router.get("/replay_plan")
def replay_plan(target: TargetDep) -> Response:
    """What `logbus replay plan` says about the window. Changes nothing."""
    context: RequestContext = target.context
    starts: tuple[datetime, ...] = (target.interval.start,)
    with told():
        plan = replay.plan(
            Ledger(context.source.engine()), context.source.log_offsets(), target.pipeline, Span(starts=starts), context.now
        )
    return answer({**plan.summary(), "command": command_of(target)})
