"""Parse the dead letters of one window again and audit it. The button on a window's page triggers this DAG; by hand:

airflow dags trigger logbus_redrive --conf '{"pipeline": "access_log", "start": "2015-05-17T10:00:00Z"}'
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.audit import AuditWindowOperator
from logbus.operators.maintenance import RedriveOperator

COMMON = {
    "pipeline": "{{ params.pipeline }}",
    "windows": "{{ params.start }}",
    "kafka_conn_id": "{{ params.kafka_conn_id }}",
    "warehouse_conn_id": "{{ params.warehouse_conn_id }}",
}

with DAG(
    "logbus_redrive",
    description="Parse the dead letters of one window again, and audit it",
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=4,
    params={
        "pipeline": Param("", type="string", minLength=1, description="a registered pipeline"),
        "start": Param("", type="string", minLength=1, description="where the window starts, such as 2015-05-17T10:00:00Z"),
        "kafka_conn_id": Param(BrokerHook.default_conn_name, type="string"),
        "warehouse_conn_id": Param(WarehouseHook.default_conn_name, type="string"),
    },
    tags=["logbus"],
) as dag:
    RedriveOperator(task_id="redrive", **COMMON) >> AuditWindowOperator(task_id="audit", **COMMON)
