"""Who may see and do what: Airflow's auth manager decides, whichever that is.

Users who may view plugins reach the pages. A pipeline is visible to those who may read one of its Dags; one without a Dag, to
all. What a user may not see does not exist: 404, the same as for a name that is not registered. To rerun or redrive, a user
needs the right to clear or trigger runs of the pipeline's Dag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import conf
from airflow.utils.session import create_session
from fastapi import HTTPException, Request
from sqlalchemy import Engine, select

from logbus.windows.registration import dags_by_pipeline

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
