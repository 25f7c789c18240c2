"""An Airflow DAG for dbt's microbatch models: one batch for each proven hour, and for no hour that is not proven.

A model with `incremental_strategy="microbatch"` and the event time `_window_start` has the hours of logbus as its batches
(dbt/models/page_views_by_hour.sql). Each proven hour is an event with the hour as its partition key and starts a run, in which
dbt processes that batch alone; an hour that was loaded again is proven again, and its batch is run again. dbt has to be on the
worker, with a profile `logbus` (dbt/profiles.yml reads the variables of libpq).
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, task
from logbus.assets import KEY_FORMAT, windows_asset
from logbus.model import HOUR

PROJECT = Path(__file__).with_name("dbt")


@task.bash(max_active_tis_per_dag=1)
def batch(partition_key: str | None = None) -> str:
    """The command for the hour's batch. dbt takes instants without a zone for UTC, as the key is."""
    start = datetime.strptime(str(partition_key), KEY_FORMAT)
    place = ("--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT))
    span = ("--event-time-start", start.isoformat(), "--event-time-end", (start + HOUR).isoformat())
    return shlex.join(["dbt", "run", "--select", "page_views_by_hour", *place, *span])


with DAG(
    "page_views_dbt",
    schedule=PartitionedAssetTimetable(assets=windows_asset("page_views")),
    catchup=False,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    tags=["logbus", "example"],
):
    batch()
