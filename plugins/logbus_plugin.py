"""The plugin Airflow finds in its plugins folder. Everything lives in the package `logbus` beside it.

Every Airflow process imports this, each task included: so the pages are imported when the api-server is first asked for one.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application behind /logbus."""
    from logbus.ui.app import app

    await app(scope, receive, send)


class LogbusPlugin(AirflowPlugin):
    """Puts this folder on Airflow's path, by being found in it, and mounts the pages that our tasks link to."""

    name = "logbus"
    fastapi_apps = [{"app": pages, "url_prefix": "/logbus", "name": "logbus"}]
