"""Managed retention, every hour: records are deleted once they are old enough and every pipeline has loaded and audited them.

Set topics and retention times by `logbus retention adopt TOPIC`, or by `policies=[RetentionPolicy(topic=..., retain=...)]`
below. Trigger it by hand with `dry_run` to see in the log what would be deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable
from logbus.operators.maintenance import RetentionOperator

with DAG(
    "logbus_retention",
    description="Delete old records of the managed topics, as far as every pipeline has loaded them",
    schedule=CronDataIntervalTimetable("30 * * * *", timezone="UTC"),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # nothing is deleted until a user unpauses it
    params={"dry_run": Param(False, type="boolean", description="Only show what would be deleted.")},
    tags=["logbus"],
) as dag:
    RetentionOperator(task_id="delete_old_records", dry_run="{{ params.dry_run }}")
