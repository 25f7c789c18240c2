"""What the routes share: what a request names, who sends it and what they may see and do (Airflow's auth manager decides,
whichever that is), our errors as HTTP errors, JSON that must not be cached.

Users who may view plugins reach the pages. A pipeline is visible to those who may read one of its Dags; one without a Dag, to
all. What a user may not see does not exist: 404, the same as for a name that is not registered. To rerun or redrive, a user
needs the right to clear or trigger runs of the pipeline's Dag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import orjson
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import conf
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request, Response
from sqlalchemy import Engine, select

from logbus import errors, model
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.status.fleet import Registered
from logbus.web import overview
from logbus.web.reading import Reading
from logbus.web.sources import NotConfigured, PageSource, PageSources
from logbus.windows.registration import dags_by_pipeline
from logbus.windows.sql_errors import ledger_errors

__all__ = ["GetUserDep"]

NOT_SEEN = "no pipeline {name!r} is registered, or you may not see its Dag; `logbus pipeline ls` lists them"


def readable_dags(user: Any, dag_ids: Iterable[str]) -> set[str]:
    """Those of the Dags that the user may read. One that Airflow has forgotten is judged by its name alone."""
    named, manager = set(dag_ids), get_auth_manager()
    if not named:
        return set()
    allowed: set[str] = manager.get_authorized_dag_ids(user=user) & named
    forgotten = named - allowed - _known_dags(named - allowed)
    return allowed | {
        dag_id for dag_id in forgotten if manager.is_authorized_dag(method="GET", details=DagDetails(id=dag_id), user=user)
    }


def _known_dags(dag_ids: Collection[str]) -> set[str]:
    if not dag_ids:
        return set()
    with create_session() as session:
        return set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))))


def visible_pipelines(user: Any, pipelines: Iterable[str], owners: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The pipelines that the user may see, each with those of its Dags that the user may read; `owners` are all Dags of each."""
    readable = readable_dags(user, {dag_id for dag_ids in owners.values() for dag_id in dag_ids})
    dag_ids_by_pipeline = {name: [dag_id for dag_id in owners.get(name, ()) if dag_id in readable] for name in pipelines}
    return {name: dag_ids for name, dag_ids in dag_ids_by_pipeline.items() if dag_ids or not owners.get(name)}


def require_visible(engine: Engine, pipeline: str, user: Any) -> list[str]:
    """404 unless the user may see the pipeline; returns those of its Dags that the user may read."""
    with engine.connect() as connection:
        owners = dags_by_pipeline(connection).get(pipeline, [])
    readable = readable_dags(user, owners)
    if owners and not readable:
        raise HTTPException(404, NOT_SEEN.format(name=pipeline))
    return [dag_id for dag_id in owners if dag_id in readable]


def is_paused(dag_id: str) -> bool | None:
    """None where Airflow has no such Dag, or its file is gone."""
    with create_session() as session:
        conditions = (DagModel.dag_id == dag_id, DagModel.is_stale.is_(False))
        return session.scalars(select(DagModel.is_paused).where(*conditions)).one_or_none()


def paused_dags(dag_ids: Collection[str]) -> list[str]:
    """Those of the Dags that are paused."""
    if not dag_ids:
        return []
    with create_session() as session:
        conditions = (DagModel.dag_id.in_(dag_ids), DagModel.is_paused.is_(True))
        return list(session.scalars(select(DagModel.dag_id).where(*conditions).order_by(DagModel.dag_id)))


def may_change_runs(user: Any, dag_id: str, method: str) -> bool:
    """Whether the user may trigger runs of the Dag (POST) or clear them (PUT)."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    allowed: bool = get_auth_manager().is_authorized_dag(
        method=method, access_entity=DagAccessEntity.RUN, details=details, user=user
    )
    return allowed


def may_read_connection(user: Any, conn_id: str) -> bool:
    """Whether the user may see the connection, and so what it leads to."""
    allowed: bool = get_auth_manager().is_authorized_connection(
        method="GET", details=ConnectionDetails(conn_id=conn_id), user=user
    )
    return allowed


def require_same_origin(request: Request) -> None:
    """Another site's page cannot make a browser act here: its requests say where they come from, and a form sends no JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(400, "send JSON: the header Content-Type must be application/json")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "this request comes from another site: open the page in Airflow and click there")
    origin = request.headers.get("origin")
    if origin is not None and origin not in _own_origins(request):
        raise HTTPException(403, f"this request comes from {origin}: open the page in Airflow and click there")


def _own_origins(request: Request) -> set[str]:
    """As the client addressed us, and as Airflow is configured if it is behind a proxy."""
    base = urlsplit(str(conf.get("api", "base_url", fallback="")))
    addressed = {f"{scheme}://{request.headers.get('host', '')}" for scheme in ("http", "https")}
    return addressed | ({f"{base.scheme}://{base.netloc}"} if base.netloc else set())


# What the routes share: what a request names and who sends it, our errors as HTTP errors, JSON that must not be cached.


Value = TypeVar("Value")

logger = logging.getLogger("logbus.web")

OK = {"state": "ok", "message": None, "advice": None}
CONNECTION_ADVICE = "Check that it runs, and the connection {conn_id} under Admin, Connections; the api-server's log says more."
NOT_YOUR_CONNECTION = (
    "Airflow's connection {conn_id} is only used for users who may see it; an administrator of Airflow can give your role that "
    "right, and without it the pages show {default}"
)
NO_LEDGER_ADVICE = "The first run of a pipeline makes it: switch on a Dag made by hourly_ingest, or `logbus pipeline register`."


class RequestContext:
    """What every request names: the two connections, and the source behind them; 403 if it names one that the user may not see.

    The default connections are for everybody, because what is shown of them is decided for each pipeline, by its Dags. That says
    nothing about any other ledger, in which somebody else may have registered a pipeline without a Dag, or about another broker.
    """

    def __init__(
        self,
        request: Request,
        user: GetUserDep,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        kafka_conn_id: str = BrokerHook.default_conn_name,
    ) -> None:
        _require_visible_connection(user, warehouse_conn_id, WarehouseHook.default_conn_name)
        _require_visible_connection(user, kafka_conn_id, BrokerHook.default_conn_name)
        sources: PageSources = request.app.state.sources
        self.user = user
        self.warehouse_conn_id = warehouse_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.source: PageSource = sources.get(warehouse_conn_id, kafka_conn_id)
        self.now: datetime = request.app.state.now()

    @property
    def has_default_connections(self) -> bool:
        """Whether ledger and broker belong together, so that a pipeline's Dag decides about its topic's records."""
        defaults = (WarehouseHook.default_conn_name, BrokerHook.default_conn_name)
        return (self.warehouse_conn_id, self.kafka_conn_id) == defaults

    def query_ledger(self, read: Callable[[], Value]) -> tuple[Value | None, dict[str, Any]]:
        """What was read, None if the warehouse cannot be asked; and the warehouse's state."""
        try:
            return read(), OK
        except errors.UserError as error:
            return None, self.warehouse_state(error)

    def visible(self, reading: overview.FleetReading | Registered | None) -> dict[str, list[str]]:
        """The pipelines that the user may see, each with those of its Dags that the user may read."""
        return {} if reading is None else visible_pipelines(self.user, reading.names, reading.dag_ids)

    def warehouse_state(self, error: errors.UserError) -> dict[str, Any]:
        if isinstance(error, errors.LedgerMissing):
            return {"state": "empty", "message": str(error), "advice": NO_LEDGER_ADVICE}
        return self._down(shown(error, "the warehouse does not answer"), self.warehouse_conn_id)

    def broker_state(self, error: errors.BrokerUnavailable | None) -> dict[str, Any]:
        return OK if error is None else self._down(shown(error, "the broker does not answer"), self.kafka_conn_id)

    def page(self, reading: Reading[Any], error: errors.BrokerUnavailable | None, values: Mapping[str, Any]) -> Response:
        """The values with what every page has: the time, when to ask again, and whether the broker answers."""
        now, again = model.instant_text(self.now), reading.refresh_seconds()
        return answer({"now": now, "refresh_seconds": again, "broker": self.broker_state(error), **values})

    def _down(self, message: str, conn_id: str) -> dict[str, Any]:
        return {"state": "down", "message": message, "advice": CONNECTION_ADVICE.format(conn_id=conn_id)}


def _require_visible_connection(user: Any, conn_id: str, default: str) -> None:
    if conn_id != default and not may_read_connection(user, conn_id):
        raise HTTPException(403, NOT_YOUR_CONNECTION.format(conn_id=conn_id, default=default))


ContextDep = Annotated[RequestContext, Depends()]


@contextmanager
def http_errors() -> Iterator[None]:
    """Turns our errors into HTTP errors."""
    try:
        with ledger_errors():
            yield
    except (errors.PipelineUnknown, errors.WindowUnknown, errors.LedgerMissing) as error:
        raise HTTPException(404, str(error)) from error
    except errors.TopicMissing as error:
        raise HTTPException(409, shown(error, str(error))) from error
    except errors.UserError as error:
        name = next((name for kind, name in DOWN.items() if isinstance(error, kind)), "the warehouse or the broker")
        message = f"{name} does not answer: check that it runs; the api-server's log says more"
        raise HTTPException(503, shown(error, message)) from error


DOWN = {errors.BrokerUnavailable: "the broker", errors.WarehouseUnavailable: "the warehouse"}


def shown(error: Exception, otherwise: str) -> str:
    """What a viewer gets to read. Where a connection leads, and what is wrong with it, goes to the log only."""
    if isinstance(error, errors.LedgerMissing | errors.LedgerOutdated | NotConfigured):
        return str(error)
    if isinstance(error, errors.TopicMissing):
        return "the broker no longer has a topic of that name: what is loaded stays, and none of it can be loaded again"
    logger.warning("%s", error)
    return otherwise


def instant(text: str | None) -> datetime | None:
    return wanted_instant(text) if text else None


def wanted_instant(text: str) -> datetime:
    try:
        return model.parse_instant(text)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def answer(value: Any) -> Response:
    """JSON, `no-store`: what one user may see must not be served to others."""
    return Response(orjson.dumps(value), media_type="application/json", headers={"Cache-Control": "no-store"})
