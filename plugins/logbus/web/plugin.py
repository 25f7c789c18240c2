"""The plugin that Airflow loads through the entry point `airflow.plugins`: to install the package is all there is to do.

Every Airflow process imports this, each task included. The pages are imported when the api-server starts, the only process that
asks for applications: otherwise the first request would wait half a second. The timetable is imported when timetables are read.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from logbus.provider import HOSTS_VARIABLE

# The pages, and what the first request to the warehouse (in SQLAlchemy) and to the broker (logbus.kafka.cluster) imports.
NEEDED = ("logbus.web.app", "psycopg", "kafka.admin")

# Where Airflow shows our pages: in its navigation, and as a tab of each Dag and Dag run. In its navigation Airflow's own address
# follows the frame: /plugin/logbus-ingestion/logbus/ui/window?... is a link to an hour. Addresses have no leading slash: they are
# relative to Airflow's own, which may be below a path (`[api] base_url`).
NAME = "Ingestion"
NAV_ROUTE = "logbus-ingestion"
PAGE = "logbus/ui/ingestion"

EXTERNAL_VIEWS: list[dict[str, Any]] = [
    {
        "name": NAME,
        "href": PAGE,
        "destination": "nav",
        "url_route": NAV_ROUTE,
        "nav_top_level": True,
        "icon": "logbus/static/icon.svg",
    },
    {"name": NAME, "href": f"{PAGE}?dag_id={{DAG_ID}}", "destination": "dag", "url_route": "logbus-dag"},
    {"name": NAME, "href": f"{PAGE}?dag_id={{DAG_ID}}&run_id={{RUN_ID}}", "destination": "dag_run", "url_route": "logbus-run"},
]

logger = logging.getLogger("logbus.web")


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application behind /logbus."""
    from logbus.web.app import app

    # Airflow's own application, for requests that the pages send to its API on behalf of the user.
    await app({**scope, "logbus.airflow": scope.get("app")}, receive, send)


class LogbusPlugin(AirflowPlugin):
    """Mounts our pages and shows them within Airflow's UI; registers the timetable of `hourly_ingest`, without which Airflow
    stores no Dag that has it."""

    name = "logbus"
    external_views = EXTERNAL_VIEWS

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # the base's is an attribute
        import_pages()
        return [{"app": pages, "url_prefix": "/logbus", "name": "logbus"}]

    @property
    def fastapi_root_middlewares(self) -> list[dict[str, Any]]:  # type: ignore[override]  # the base's is an attribute
        """Refuses requests by other names than those that `logbus up` has set: otherwise a website's page would reach it, by
        making the site's name lead to 127.0.0.1 (DNS rebinding)."""
        if not (hosts := os.environ.get(HOSTS_VARIABLE)):
            return []
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        options = {"allowed_hosts": hosts.split(","), "www_redirect": False}
        return [{"name": "logbus hosts", "middleware": TrustedHostMiddleware, "kwargs": options}]

    @property
    def timetables(self) -> list[Any]:  # type: ignore[override]  # the base's is an attribute
        from logbus.timetable import WindowTimetable

        return [WindowTimetable]

    @property
    def deadline_references(self) -> list[Any]:  # type: ignore[override]  # the base's is an attribute; since Airflow 3.3
        from logbus.timetable import WindowEnd

        return [WindowEnd]


def import_pages() -> None:
    """Pages that cannot be imported must not break the rest of Airflow: the error is logged, and a request gets it again."""
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except Exception:
            logger.exception("the pages below /logbus cannot be imported")
