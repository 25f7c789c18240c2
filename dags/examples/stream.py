"""An Airflow DAG: page views by minute and page as they arrive, within minutes, and each hour proven equal to its load."""

from __future__ import annotations

from logbus.pipelines import windowed_counts

windowed_counts(
    "page_views",
    name="page_views_live",
    keys=["url"],
    dag_arguments={"tags": ["logbus", "example"]},
)
