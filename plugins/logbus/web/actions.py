"""What a user may do about a window: rerun it, redrive its dead letters, look at the plan of a replay.

Nothing is executed here: a rerun clears the Dag run of the window, a redrive triggers the Dag `logbus_redrive`, both through
Airflow's own API and with the caller's rights, so Airflow's history and audit log record it and its workers do it. No user's
parser runs in the api-server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from logbus import errors, model
from logbus.loads.history import AttemptRecord, WindowHistory, window_history
from logbus.loads.ledger import Ledger
from logbus.status import replay
from logbus.status.replay import Span
from logbus.web import details, request_context

REDRIVE_DAG = "logbus_redrive"
SINK_WITH_ROWS = "postgres"  # the one that is changed row by row

Asked = TypeVar("Asked")

router = APIRouter(prefix="/api/windows/{pipeline}/{start}")


class Hour:
    """The hour that a request names, of a pipeline that the caller may see, and those of its Dags that they may see. `frozen`
    is its window; if there is none yet, the hour is one that could be frozen: closed, and one of the pipeline's."""

    def __init__(self, context: request_context.ContextDep, pipeline: str, start: str) -> None:
        self.context, self.pipeline, begin = context, pipeline, request_context.wanted_instant(start)
        with request_context.http_errors():
            engine = context.source.engine()
            self.dag_ids = request_context.require_visible(engine, pipeline, context.user)
            self.registered = registered = Ledger(engine).pipeline(pipeline)
            try:
                self.frozen: WindowHistory | None = window_history(engine, pipeline, begin)
                self.interval = self.frozen.window.interval
            except errors.WindowUnknown:
                if begin != registered.grid.floor(begin) or not self.may_be_unfrozen(begin):
                    raise
                self.frozen, self.interval = None, registered.grid.window(begin)

    def may_be_unfrozen(self, start: datetime) -> bool:
        """Whether the hour is looked at without a window; 409 if it is open."""
        if start >= self.registered.closed_until(self.context.now):
            until = model.instant_text(self.registered.grid.after(start) + self.registered.lateness)
            raise HTTPException(409, f"the window of {model.instant_text(start)} is open until {until}: load it then")
        return True

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        return () if self.frozen is None else self.frozen.attempts


class AnyHour(Hour):
    """An hour of the pipeline's, frozen or not, closed or still open."""

    def may_be_unfrozen(self, start: datetime) -> bool:
        return start <= self.context.now


class Target(Hour):
    """An hour with a window: one that is not frozen is unknown."""

    def may_be_unfrozen(self, start: datetime) -> bool:
        return False

    @property
    def history(self) -> WindowHistory:
        assert self.frozen is not None, "an hour without a window was refused"
        return self.frozen


HourDep = Annotated[Hour, Depends()]
AnyHourDep = Annotated[AnyHour, Depends()]
TargetDep = Annotated[Target, Depends()]


def possible(target: Target, request: Request) -> list[dict[str, Any]]:
    """The actions, each allowed or not, and why not."""
    hour = model.instant_text(target.interval.start)
    again = f"Load {hour} again? The same records replace the rows that are there."
    parse = f"Parse the dead letters of {hour} again?"
    return [
        _action("rerun", "Rerun", href(target, request, "rerun"), _why_no_rerun(target), again),
        _action("redrive", "Redrive dead letters", href(target, request, "redrive"), _why_no_redrive(target), parse),
        _action("replay_plan", "Replay plan", href(target, request, "replay_plan"), None),
    ]


def first_load(hour: Hour, request: Request) -> dict[str, Any]:
    """What can be done about an hour that is closed and not frozen yet."""
    confirm = f"Trigger a run for {model.instant_text(hour.interval.start)}? It freezes the hour's offsets and loads them."
    return _action("load", "Load", href(hour, request, "rerun"), _why_no_rerun(hour), confirm)


def _action(name: str, label: str, href: str, why_not: str | None, confirm: str | None = None) -> dict[str, Any]:
    """As JSON-ready values. What changes something asks for confirmation."""
    facts = {"name": name, "label": label, "allowed": why_not is None, "why_not": why_not, "href": href, "confirm": confirm}
    return {**facts, "method": "GET" if confirm is None else "POST"}


def href(target: Hour, request: Request, name: str) -> str:
    """The action's own address, with the connections that the page uses."""
    connections = {"warehouse_conn_id": target.context.warehouse_conn_id, "kafka_conn_id": target.context.kafka_conn_id}
    start = quote(model.instant_text(target.interval.start), safe=":")
    root = request.scope.get("root_path", "")
    return f"{root}/api/windows/{quote(target.pipeline, safe='')}/{start}/{name}?{urlencode(connections)}"


def _why_no_rerun(hour: Hour) -> str | None:
    if not hour.dag_ids:
        return f"no Dag loads this pipeline; {by_hand(hour)}"
    if not _dags_allowed(hour, "PUT"):
        return f"you may not clear runs of {' or '.join(hour.dag_ids)}: an Airflow administrator can give you the right"
    # Which of several Dags has the run is looked up when it is rerun; here it is enough that one of them could have it.
    idle = [_why_idle(dag_id) for dag_id in _dags_allowed(hour, "PUT")]
    return idle[0] if all(idle) else None


def _why_no_redrive(target: Target) -> str | None:
    counts = target.history.window.counts
    if counts is None:
        return "the window is not loaded: rerun it"
    if not counts.dead_lettered:
        return "the window has no dead letters"
    if target.registered.options.sink != SINK_WITH_ROWS:
        return (
            f"files of {target.registered.options.sink} are not changed row by row: rerun the hour, which parses everything again"
        )
    if target.dag_ids and not _dags_allowed(target, "POST"):
        return f"you may not trigger runs of {' or '.join(target.dag_ids)}: an Airflow administrator can give you the right"
    if not request_context.may_change_runs(target.context.user, REDRIVE_DAG, "POST"):
        return f"you may not trigger runs of {REDRIVE_DAG}: an Airflow administrator can give you the right"
    return _why_idle(REDRIVE_DAG)


def _why_idle(dag_id: str) -> str | None:
    """Why Airflow would start no run of a Dag that the caller may run."""
    is_paused = request_context.is_paused(dag_id)
    if is_paused is None:
        where = ": dags/redrive.py makes it, put it into Airflow's dags folder" if dag_id == REDRIVE_DAG else ""
        return f"Airflow has no Dag {dag_id}{where}"
    return f"the Dag {dag_id} is paused: switch it on, or `airflow dags unpause {dag_id}`" if is_paused else None


def _dags_allowed(hour: Hour, method: str) -> list[str]:
    """The Dags of the pipeline whose runs the caller may change; that of the last attempt first."""
    last = [attempt.task.dag_id for attempt in reversed(hour.attempts) if attempt.task is not None]
    ordered = sorted(hour.dag_ids, key=lambda dag_id: last.index(dag_id) if dag_id in last else len(last))
    return [dag_id for dag_id in ordered if request_context.may_change_runs(hour.context.user, dag_id, method)]


def by_hand(hour: Hour) -> str:
    return f"`{command_of(hour)}` loads it"


def command_of(hour: Hour) -> str:
    if hour.frozen is None:
        return f"logbus load --pipeline {hour.pipeline} --only-missing"
    return f"logbus replay run --pipeline {hour.pipeline} --window {model.instant_text(hour.interval.start)}"


@router.post("/rerun", dependencies=[Depends(request_context.require_same_origin)])
async def rerun(request: Request, hour: HourDep) -> Response:
    """Clears the Dag run of the hour; if there is none, triggers one. The run freezes the hour if it is not frozen yet."""
    await _raise_if_not_allowed(_why_no_rerun, hour)
    allowed = await run_in_threadpool(_dags_allowed, hour, "PUT")
    airflow = details.AirflowRest(request)
    if (run := await _run_of(airflow, hour, allowed)) is not None:
        await _raise_if_not_allowed(_why_idle, run.dag_id)
        if not run.is_over:
            raise HTTPException(409, f"run {run.run_id} of {run.dag_id} is {run.state}: wait until it has ended, then rerun it")
        await airflow.clear(run)
        return done("the run of this hour was cleared and starts again", run)
    if (dag_id := await _hourly_dag(airflow, hour, allowed)) is not None:
        await _raise_if_not_allowed(_why_idle, dag_id)
        return done("a run for this hour was requested", await airflow.trigger(dag_id, _fields_of(hour.interval)))
    raise HTTPException(409, f"no run of {' or '.join(allowed)} covers exactly this hour; {by_hand(hour)}")


async def _run_of(airflow: details.AirflowRest, hour: Hour, dag_ids: Sequence[str]) -> details.DagRun | None:
    """The run whose data interval is the window. A run that loaded it along with its own hour, or among many, does not count."""
    runs = [run for dag_id in dag_ids for run in await airflow.runs_at(dag_id, hour.interval.start)]
    for attempt in reversed(hour.attempts):
        if attempt.task is not None and attempt.task.dag_id in dag_ids:
            run = await airflow.run(attempt.task.dag_id, attempt.run_id)
            runs += [run] if run is not None else []
    return next((run for run in runs if run.interval == hour.interval), None)


async def _hourly_dag(airflow: details.AirflowRest, hour: Hour, dag_ids: Sequence[str]) -> str | None:
    """A Dag whose runs have data intervals as long as the hour; of a day, however many hours it has."""
    grid = hour.registered.grid
    alike = grid if grid.has(hour.interval) else model.Grid(hour.interval.end - hour.interval.start)
    for dag_id in dag_ids:
        runs = await airflow.newest_runs(dag_id)
        if any(run.interval is not None and alike.window(run.interval.start) == run.interval for run in runs):
            return dag_id
    return None


def _fields_of(interval: model.Interval) -> dict[str, str]:
    """A run over an interval of the past, as Airflow's API takes it."""
    start, end = model.instant_text(interval.start), model.instant_text(interval.end)
    return {"logical_date": start, "data_interval_start": start, "data_interval_end": end, "run_after": end}


@router.post("/redrive", dependencies=[Depends(request_context.require_same_origin)])
async def redrive(request: Request, target: TargetDep) -> Response:
    """Triggers the Dag that parses the window's dead letters again and audits it."""
    await _raise_if_not_allowed(_why_no_redrive, target)
    conf = {
        "pipeline": target.pipeline,
        "start": model.instant_text(target.interval.start),
        "kafka_conn_id": target.context.kafka_conn_id,
        "warehouse_conn_id": target.context.warehouse_conn_id,
    }
    return done(
        "the dead letters are being parsed again", await details.AirflowRest(request).trigger(REDRIVE_DAG, {"conf": conf})
    )


async def _raise_if_not_allowed(why_not_of: Callable[[Asked], str | None], target: Asked) -> None:
    """403 or 409 if there is a reason not to."""
    if (why_not := await run_in_threadpool(why_not_of, target)) is not None:
        raise HTTPException(403 if why_not.startswith("you may not") else 409, why_not)


def done(message: str, run: details.DagRun) -> Response:
    url = details.run_url(run.run_id, run.dag_id)
    return request_context.answer({"ok": True, "message": message, "dag_id": run.dag_id, "run_id": run.run_id, "url": url})


@router.get("/replay_plan")
def replay_plan(target: TargetDep) -> Response:
    """What `logbus replay plan` shows about the window. Changes nothing."""
    context: request_context.RequestContext = target.context
    starts: tuple[datetime, ...] = (target.interval.start,)
    with request_context.http_errors():
        plan = replay.plan(
            Ledger(context.source.engine()), context.source.log_offsets(), target.pipeline, Span(starts=starts), context.now
        )
    return request_context.answer({**plan.summary(), "command": command_of(target)})
