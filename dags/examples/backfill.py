"""A pipeline with a past, as an Airflow DAG: its hours can be filled in from the user interface.

DAG page, Trigger -> Backfill, or `POST /api/v2/backfills`, or `airflow backfill create --dag-id page_views --from-date ...`. Each
hour is a run of its own with its own audit, in any order, beside the live schedule; the hours that wait are loaded by one Spark
application. Hours that are loaded already are left alone, unless the backfill says to reprocess them: then the same offsets are
loaded again.
"""

from __future__ import annotations

from logbus.pipelines import hourly_ingest

hourly_ingest(
    pipeline="page_views",
    parse="json",
    columns={"url": "text", "visitor": "bigint"},
    dag_arguments={"tags": ["logbus", "example"], "doc_md": __doc__},
)
