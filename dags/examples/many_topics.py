"""Airflow DAGs for many topics at once: a single call makes one DAG and one table per topic.

Most of them are parsed the same way here. A topic that needs different settings is passed as a `Pipeline`, or gets its own call:
that of visits is loaded in days of Berlin, which have 23 or 25 hours when clocks change.
"""

from __future__ import annotations

from logbus.pipelines import define_pipeline, many_topics

VISITS = define_pipeline("visits", parse="json", columns={"visitor": "bigint"}, every="1d", timezone="Europe/Berlin")
TOPICS = ["orders", "payments", VISITS]

many_topics(
    TOPICS,
    parse="json",
    columns={"id": "bigint", "amount": "double precision", "note": "text"},
    max_error_rate=0.01,
    dag_arguments={"tags": ["logbus", "example"]},
)
