"""An Airflow DAG for a pipeline with history: past hours can be backfilled from the user interface.

DAG page, Trigger -> Backfill, or `POST /api/v2/backfills`, or `airflow backfill create --dag-id page_views --from-date ...`. Each
hour is a separate DAG run with its own audit, in any order and in parallel with the live schedule; one Spark application loads
all hours that are waiting. Hours that are already loaded are skipped, unless the backfill is set to reprocess them: then the
same offsets are loaded again. `page_views_catchup` takes a span of hours in one run, also hours in which nobody sent anything.
"""

from __future__ import annotations

from datetime import timedelta

from logbus.pipelines import catch_up, define_pipeline, hourly_ingest

PAGE_VIEWS = define_pipeline("page_views", parse="json", columns={"url": "text", "visitor": "bigint"})
ARGUMENTS = {"tags": ["logbus", "example"], "doc_md": __doc__}

hourly_ingest(PAGE_VIEWS, proven_within=timedelta(hours=2), dag_arguments=ARGUMENTS)
catch_up(PAGE_VIEWS, dag_arguments=ARGUMENTS)
