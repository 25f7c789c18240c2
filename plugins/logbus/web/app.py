"""The application that the plugin mounts at /logbus: the pages, their data, and the targets of our tasks' links: a window, or a
pipeline's windows, as JSON for programs; browsers are redirected to the page.

A mounted application has no authentication of its own, so every route asks Airflow who the user is: one who may view plugins sees
the pipelines of Dags that this user may read. Only the static files, which hold nothing secret, are open to everyone.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from logbus.loads.ledger import Ledger
from logbus.model import utc_now
from logbus.web import access, actions, request_context, routes, shell, sources

WINDOWS_SHOWN_MAX = 500  # three weeks of hours; a page with more is not read

# No OpenAPI description either: it would be served without a login.
app = FastAPI(title="logbus", openapi_url=None, dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
app.state.now = utc_now
app.state.sources = sources.PageSources(now=utc_now, clock=time.monotonic)
app.include_router(shell.router)
app.include_router(routes.router)
app.include_router(actions.router)
shell.mount_static(app)


@app.exception_handler(RequestValidationError)
async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    """An invalid parameter, in a sentence like all our errors; an invalid part of the path is a 404."""
    wrong = "; ".join(f"{detail['loc'][-1]}: {detail['msg']}" for detail in error.errors())
    is_nowhere = any(detail["loc"][0] == "path" for detail in error.errors())
    return JSONResponse({"detail": f"invalid request: {wrong}"}, status_code=404 if is_nowhere else 400)


Form = Annotated[Literal["html", "json"] | None, Query(description="by default what the client accepts")]
Accept = Annotated[str, Header()]


@app.get("/windows/{pipeline}")
def windows(
    request: Request,
    context: request_context.ContextDep,
    pipeline: str,
    since: str | None = None,
    until: str | None = None,
    form: Form = None,
    accept: Accept = "*/*",
) -> Response:
    """The pipeline's newest windows between two instants."""
    if _wants_page(form, accept):
        return shell.to_page(request, "ingestion", pipeline=pipeline, warehouse_conn_id=context.warehouse_conn_id)
    with request_context.http_errors():
        engine = context.source.engine()
        access.require_visible(engine, pipeline, context.user)
        history = Ledger(engine).windows(pipeline, since=request_context.instant(since), until=request_context.instant(until))[
            -WINDOWS_SHOWN_MAX:
        ]
    return request_context.answer([window.summary() for window in history])


@app.get("/windows/{pipeline}/{start}")
def window(
    request: Request, context: request_context.ContextDep, pipeline: str, start: str, form: Form = None, accept: Accept = "*/*"
) -> Response:
    """The window that begins at `start`."""
    if _wants_page(form, accept):
        return shell.to_page(request, "window", pipeline=pipeline, start=start, warehouse_conn_id=context.warehouse_conn_id)
    return request_context.answer(actions.Target(context, pipeline, start).history.window.summary())


def _wants_page(form: str | None, accept: str) -> bool:
    """Browsers accept HTML; every other client gets JSON."""
    return form == "html" or (form is None and "text/html" in accept)
