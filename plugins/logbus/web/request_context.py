"""What the routes share: what a request names and who sends it, our errors as HTTP errors, JSON that must not be cached."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, HTTPException, Request, Response

from logbus import errors, model
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.status.fleet import Registered
from logbus.web import access, overview
from logbus.web.access import GetUserDep
from logbus.web.reading import Reading
from logbus.web.sources import NotConfigured, PageSource, PageSources
from logbus.windows.sql_errors import ledger_errors

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
        return {} if reading is None else access.visible_pipelines(self.user, reading.names, reading.dag_ids)

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
    if conn_id != default and not access.may_read_connection(user, conn_id):
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
