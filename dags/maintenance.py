"""An Airflow DAG that once a night merges old hourly partitions into days and removes files that are no longer public."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from logbus.operators.maintenance import MaintainOperator

with DAG(
    "logbus_maintenance",
    description="Merge hourly partitions of closed days, remove files that are no longer public",
    schedule="30 3 * * *",
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
    tags=["logbus"],
) as maintenance:
    MaintainOperator(task_id="maintain")
