"""An Airflow DAG for a pipeline with history: past hours can be backfilled from the user interface.

DAG page, Trigger -> Backfill, or `POST /api/v2/backfills`, or `airflow backfill create --dag-id page_views --from-date ...`. Each
hour is a separate DAG run with its own audit, in any order and in parallel with the live schedule; one Spark application loads
all hours that are waiting. Hours that are already loaded are skipped, unless the backfill is set to reprocess them: then the
same offsets are loaded again.
"""

from __future__ import annotations

from logbus.pipelines import hourly_ingest

hourly_ingest(
    pipeline="page_views",
    parse="json",
    columns={"url": "text", "visitor": "bigint"},
    dag_arguments={"tags": ["logbus", "example"], "doc_md": __doc__},
)
