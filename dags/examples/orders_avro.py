"""An Airflow DAG: every hour of a topic whose values name a schema of a registry.

Columns follow the schemas. The registry's login, if it wants one, is in the broker's connection (`basic.auth.user.info`).
"""

from __future__ import annotations

from logbus.pipelines import hourly_ingest

hourly_ingest(
    "orders_avro",
    topic="orders",
    parse="avro",
    registry="http://127.0.0.1:8081",
    dag_arguments={"tags": ["logbus", "example"]},
)
