"""Airflow DAGs for many topics at once: a single call makes one DAG and one table per topic.

All of them are parsed the same way here. A topic that needs different settings is passed as a `Pipeline`, or gets its own call.
"""

from __future__ import annotations

from logbus.pipelines import many_topics

TOPICS = ["orders", "payments"]

many_topics(
    TOPICS,
    parse="json",
    columns={"id": "bigint", "amount": "double precision", "note": "text"},
    max_error_rate=0.01,
    dag_arguments={"tags": ["logbus", "example"]},
)
