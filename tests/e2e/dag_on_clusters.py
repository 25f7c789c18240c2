"""An Airflow DAG for the end-to-end tests: each hour of a topic on three brokers, loaded by a standalone Spark of two workers.

Neither Airflow nor the DAG knows Spark's address, the warehouse's password or the broker's settings as they are passed to the driver:
the file that the script reads has them, as a secret of a cluster would.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from logbus.assets import table_asset
from logbus.operators.audit import AuditWindowOperator
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_steps import BeginLoadOperator, VerifyLoadOperator
from logbus.pipelines import define_pipeline
from logbus.timetable import WindowTimetable

COMMON = {
    "pipeline": define_pipeline("sightings", parse="json", columns={"visitor": "bigint"}),
    "kafka_conn_id": "kafka_three",
}

with DAG("sightings", schedule=WindowTimetable(), start_date=datetime(2015, 5, 1, tzinfo=UTC), catchup=False, max_active_runs=1):
    freeze = FreezeWindowOperator(task_id="freeze", **COMMON)
    begin = BeginLoadOperator(task_id="begin", **COMMON)
    submit = BashOperator(
        task_id="submit",
        bash_command='{{ var.value.submit_program }} {{ ti.xcom_pull(task_ids="begin", key="arguments") | join(" ") }}',
        retries=0,
    )
    verify = VerifyLoadOperator(task_id="verify", begun=begin.output, deferrable=True, poke_interval=1, **COMMON)
    audit = AuditWindowOperator(
        task_id="audit", also=verify.output["filled"], outlets=[table_asset(COMMON["pipeline"])], **COMMON
    )
    freeze >> begin >> submit >> verify >> audit
