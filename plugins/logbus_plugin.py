"""The plugin Airflow finds in its plugins folder. Everything lives in the package `logbus` beside it.

Every Airflow process imports this, each task included. The pages are imported when the api-server starts, which alone asks for
applications: whoever looks first would wait half a second for it. The timetable is imported by those who ask for timetables.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from logbus.ui.views import EXTERNAL_VIEWS

# The pages, and what the first question to the warehouse (in SQLAlchemy) and to the broker (logbus.kafka.other_requests) imports.
NEEDED = ("logbus.ui.app", "psycopg", "kafka.admin")

logger = logging.getLogger("logbus.ui")


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application behind /logbus."""
    from logbus.ui.app import app

    # Airflow's own application, for what the pages ask of its API in the name of whoever looks at them.
    await app({**scope, "logbus.airflow": scope.get("app")}, receive, send)


class LogbusPlugin(AirflowPlugin):
    """Puts this folder on Airflow's path, by being found in it; mounts our pages and shows them in Airflow's own; registers the
    timetable of `hourly_ingest`."""

    name = "logbus"
    external_views = EXTERNAL_VIEWS

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # the base's is an attribute
        import_pages()
        return [{"app": pages, "url_prefix": "/logbus", "name": "logbus"}]

    @property
    def timetables(self) -> list[Any]:  # type: ignore[override]  # the base's is an attribute
        from logbus.timetable import WindowTimetable

        return [WindowTimetable]


def import_pages() -> None:
    """Pages that cannot be imported take nothing else of Airflow's with them: who asks for one gets the error, too."""
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except Exception:
            logger.exception("the pages below /logbus cannot be imported")
