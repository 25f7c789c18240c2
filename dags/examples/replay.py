"""Reload past hours on demand: trigger it with `since` and `until`, and check `logbus replay plan` first.

The table keeps its old rows until the new ones are committed. The audit then counts them again. The group that dashboards
read stays where it is, because its offsets only move forward.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from logbus.operators.audit import AuditWindowOperator
from logbus.operators.load_window import ReplayOperator
from logbus.operators.topic import CommitOffsetsOperator
from logbus.pipelines import Pipeline

ACCESS_LOG = Pipeline(name="access_log", topic="access_log", table="access_log", parse="combined")
INSTANT = {"type": "string", "format": "date-time"}

with DAG(
    "access_log_replay",
    description="Load hours of the access log again, from the same records",
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "since": Param("2015-05-17T10:00:00Z", description="Hours that end after this instant.", **INSTANT),
        "until": Param("2015-05-17T11:00:00Z", description="Hours that begin before this instant.", **INSTANT),
    },
    tags=["logbus", "example"],
    doc_md=__doc__,
) as dag:
    replay = ReplayOperator(task_id="replay", pipeline=ACCESS_LOG, since="{{ params.since }}", until="{{ params.until }}")
    audit = AuditWindowOperator(task_id="audit", pipeline=ACCESS_LOG, windows=replay.output["starts"])
    commit = CommitOffsetsOperator(task_id="commit", pipeline=ACCESS_LOG, windows=replay.output["starts"])
    replay >> audit >> commit
