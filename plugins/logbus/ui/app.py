"""The application behind the pages, and behind the links of our tasks: a window, or a pipeline's windows, as JSON for programs;
who comes with a browser is led to the page.

Mounted by the plugin at /logbus. Whoever may see Airflow's plugins may look; nothing can be changed. A mounted application has no
authentication of its own, so every route asks for it; only the static files, which hold nothing secret, are anybody's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Literal

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import ProgrammingError

from logbus.errors import PipelineUnknown, UserError, WarehouseUnavailable, WindowUnknown
from logbus.hooks.warehouse import WarehouseHook
from logbus.ui import shell
from logbus.windows.ledger import Ledger
from logbus.windows.model import FrozenWindow, parse_instant

WINDOWS_SHOWN_MAX = 500  # three weeks of hours; a page with more is not read

logger = logging.getLogger("logbus.ui")

app = FastAPI(title="logbus", docs_url=None, redoc_url=None, dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
app.include_router(shell.router)
shell.mount_static(app)

ConnectionId = Annotated[str, Query(description="the Airflow connection of the warehouse that holds the ledger")]
Form = Annotated[Literal["html", "json"] | None, Query(description="by default what the client accepts")]
Accept = Annotated[str, Header()]


@app.get("/windows/{pipeline}")
def windows(
    request: Request,
    pipeline: str,
    warehouse_conn_id: ConnectionId = WarehouseHook.default_conn_name,
    since: str | None = None,
    until: str | None = None,
    form: Form = None,
    accept: Accept = "*/*",
) -> Response:
    """The pipeline's newest windows between two instants."""
    if wants_page(form, accept):
        return shell.to_page(request, "ingestion", pipeline=pipeline, warehouse_conn_id=warehouse_conn_id)
    with ledger_of(warehouse_conn_id) as ledger:
        found = ledger.windows(pipeline, since=instant(since), until=instant(until))[-WINDOWS_SHOWN_MAX:]
    return JSONResponse([window.summary() for window in found])


@app.get("/windows/{pipeline}/{start}")
def window(
    request: Request,
    pipeline: str,
    start: str,
    warehouse_conn_id: ConnectionId = WarehouseHook.default_conn_name,
    form: Form = None,
    accept: Accept = "*/*",
) -> Response:
    """The window that begins at `start`."""
    if wants_page(form, accept):
        return shell.to_page(request, "window", pipeline=pipeline, start=start, warehouse_conn_id=warehouse_conn_id)
    with ledger_of(warehouse_conn_id) as ledger:
        found: FrozenWindow = ledger.window(pipeline, instant(start) or datetime.min)
    return JSONResponse(found.summary())


def instant(text: str | None) -> datetime | None:
    try:
        return parse_instant(text) if text else None
    except ValueError:
        raise HTTPException(400, f"{text!r} is no instant; write it like 2015-05-17T10:00:00Z") from None


def wants_page(form: str | None, accept: str) -> bool:
    """Browsers say that they take HTML; everybody else gets JSON."""
    return form == "html" or (form is None and "text/html" in accept)


@contextmanager
def ledger_of(warehouse_conn_id: str) -> Iterator[Ledger]:
    """The ledger for one request. What is wrong with a connection is for the log: a viewer need not learn where it leads."""
    try:
        ledger = WarehouseHook(warehouse_conn_id).existing_ledger()
        try:
            yield ledger
        finally:
            ledger.engine.dispose()
    except (PipelineUnknown, WindowUnknown) as error:
        raise HTTPException(404, str(error)) from error
    except ProgrammingError as error:
        raise HTTPException(404, "this warehouse holds no ledger yet: the first run of a pipeline makes it") from error
    except WarehouseUnavailable as error:
        logger.warning("%s", error)
        raise HTTPException(503, "the warehouse does not answer; the api-server's log says more") from error
    except UserError as error:
        raise HTTPException(400, str(error)) from error
