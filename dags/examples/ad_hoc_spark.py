"""An ad hoc Spark program over exactly the hour's offsets, as an Airflow DAG.

The program (spark_jobs/examples/partition_sizes.py) is handed the frozen offsets; run it again tomorrow and it reads the same
records. The pipeline is registered and loaded elsewhere (backfill.py).
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.spark_submit import application_path

PROGRAM = application_path().parent / "examples" / "partition_sizes.py"

with DAG(
    "page_views_partition_sizes",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["logbus", "example"],
):
    SparkSubmitWindowOperator(task_id="sizes", pipeline="page_views", application=str(PROGRAM))
