"""An Airflow DAG that runs an ad hoc Spark program over exactly one hour's offsets.

The program (spark_jobs/logbus_spark/examples/partition_sizes.py) receives the frozen offsets, so running it again tomorrow reads
the same records. The pipeline itself is registered and loaded by another DAG (backfill.py).
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.spark_submit import application_path
from logbus.timetable import WindowTimetable

PROGRAM = application_path().parent / "examples" / "partition_sizes.py"

with DAG(
    "page_views_partition_sizes",
    schedule=WindowTimetable(),  # a run is due once its hour is closed
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["logbus", "example"],
):
    SparkSubmitWindowOperator(task_id="sizes", pipeline="page_views", application=str(PROGRAM))
