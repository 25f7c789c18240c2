"""An Airflow DAG: page views beside the clicks on the same page within a minute, as both arrive, however late either comes."""

from __future__ import annotations

from logbus.pipelines import joined

joined(
    "views_and_clicks",
    left="page_views",
    right="clicks",
    on="url",
    within="1m",
    left_columns={"viewer": "visitor"},
    right_columns={"clicker": "visitor"},
    dag_arguments={"tags": ["logbus", "example"]},
)
