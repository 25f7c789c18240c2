"""The plugin Airflow finds in its plugins folder. Everything lives in the package `logbus` beside it.

Every Airflow process imports this, each task included: so the pages are imported when the api-server is first asked for one.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin
from logbus.ui.views import EXTERNAL_VIEWS


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application behind /logbus."""
    from logbus.ui.app import app

    # Airflow's own application, for what the pages ask of its API in the name of whoever looks at them.
    await app({**scope, "logbus.airflow": scope.get("app")}, receive, send)


class LogbusPlugin(AirflowPlugin):
    """Puts this folder on Airflow's path, by being found in it; mounts our pages and shows them in Airflow's own."""

    name = "logbus"
    fastapi_apps = [{"app": pages, "url_prefix": "/logbus", "name": "logbus"}]
    external_views = EXTERNAL_VIEWS
