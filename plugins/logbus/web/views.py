"""Where Airflow shows our pages: in its navigation, and as a tab of each Dag and Dag run. Plain data: every process imports this.

In its navigation Airflow's own address follows the frame: /plugin/logbus-ingestion/logbus/ui/window?... is a link to an hour.
Addresses have no leading slash: they are relative to Airflow's own, which may be below a path (`[api] base_url`).
"""

from __future__ import annotations

from typing import Any

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
