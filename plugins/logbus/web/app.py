"""The application that the plugin mounts at /logbus: the pages, whose shells are a few lines of HTML that require a login, their
data, and the targets of our tasks' links: a window, or a pipeline's windows, as JSON for programs; browsers are redirected to the
page.

A shell holds no data: its script asks the JSON routes for it, as the user who is logged in. The static files hold nothing secret,
so they need no login. Text from records and errors is shown by scripts that never turn text into HTML; the content security
policy allows no script, style or connection but our own, as a second line of defence.

A mounted application has no authentication of its own, so every route asks Airflow who the user is: one who may view plugins sees
the pipelines of Dags that this user may read. Only the static files, which hold nothing secret, are open to everyone.
"""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from logbus.loads.ledger import Ledger
from logbus.model import utc_now
from logbus.web import actions, request_context, routes, sources
from logbus.web.plugin import NAV_ROUTE

STATIC_DIRECTORY = Path(__file__).parent / "static"

Page = Literal["ingestion", "window", "pipeline", "topics", "records", "connection"]
TITLES: dict[Page, str] = {
    "ingestion": "Ingestion",
    "window": "Window",
    "pipeline": "Pipeline",
    "topics": "Topics and groups",
    "records": "Records",
    "connection": "What this connection may do",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} &middot; logbus</title>
<link rel="icon" href="../static/icon.svg">
<link rel="stylesheet" href="../static/base.css">
<link rel="stylesheet" href="../static/states.css">
<link rel="stylesheet" href="../static/{page}.css">
<script type="module" src="../static/{page}.js"></script>
</head>
<body>
<main id="main"><div id="notices"></div><div id="page"><noscript>This page needs JavaScript; the same data as JSON is at
../api/overview, and in a terminal: logbus lag, logbus window ls.</noscript></div></main>
</body>
</html>
"""

router = APIRouter()


@router.get("/ui/{page}")
def shell(page: Page) -> HTMLResponse:
    """One page, without its data."""
    return HTMLResponse(SHELL.format(page=page, title=escape(TITLES[page])), headers=HEADERS)


class StaticPages(StaticFiles):
    """Files that a browser revalidates each time by their ETag: after an upgrade none of the old ones is used."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update({"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"})
        return response


def mount_static(app: FastAPI) -> None:
    app.mount("/static", StaticPages(directory=STATIC_DIRECTORY), name="static")


def to_page(request: Request, page: Page, **values: str) -> RedirectResponse:
    """To a page of ours: inside Airflow's own if it is opened in a tab, alone if it is in a frame already."""
    query = urlencode(values)
    inside = request.headers.get("sec-fetch-dest", "document") != "document"
    prefix = str(request.scope.get("root_path", "")).rstrip("/")  # where this application is mounted, such as /logbus
    airflow = prefix.removesuffix("/logbus")
    address = f"{prefix}/ui/{page}" if inside else f"{airflow}/plugin/{NAV_ROUTE}{prefix}/ui/{page}"
    return RedirectResponse(f"{address}?{query}", status_code=303)


# The application that the plugin mounts at /logbus: the pages, their data, and the targets of our tasks' links: a window,
# or a pipeline's windows, as JSON for programs; browsers are redirected to the page.


WINDOWS_SHOWN_MAX = 500  # three weeks of hours; a page with more is not read

# No OpenAPI description either: it would be served without a login.
app = FastAPI(title="logbus", openapi_url=None, dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
app.state.now = utc_now
app.state.sources = sources.PageSources(now=utc_now, clock=time.monotonic)
app.include_router(router)
app.include_router(routes.router)
app.include_router(actions.router)
mount_static(app)


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
        return to_page(request, "ingestion", pipeline=pipeline, warehouse_conn_id=context.warehouse_conn_id)
    with request_context.http_errors():
        engine = context.source.engine()
        request_context.require_visible(engine, pipeline, context.user)
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
        return to_page(request, "window", pipeline=pipeline, start=start, warehouse_conn_id=context.warehouse_conn_id)
    return request_context.answer(actions.Target(context, pipeline, start).history.window.summary())


def _wants_page(form: str | None, accept: str) -> bool:
    """Browsers accept HTML; every other client gets JSON."""
    return form == "html" or (form is None and "text/html" in accept)
