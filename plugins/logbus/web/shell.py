"""The pages' shells: a few lines of HTML, which require a login, and the static files that fill them.

A shell holds no data: its script asks the JSON routes for it, as the user who is logged in. The static files hold nothing secret,
so they need no login. Text from records and errors is shown by scripts that never turn text into HTML; the content security
policy allows no script, style or connection but our own, as a second line of defence.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

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
