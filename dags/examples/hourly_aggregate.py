"""An Airflow DAG: page views by minute and page, exact however late a record comes, after each load of page_views."""

from __future__ import annotations

from logbus.pipelines import count, hourly_aggregate

hourly_aggregate(
    "page_views",
    name="page_views_per_minute",
    keys=["url"],
    measures={"views": count(), "visitors": count("visitor")},
    window="1m",
    dag_arguments={"tags": ["logbus", "example"]},
)
