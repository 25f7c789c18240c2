"""Many topics at once, as Airflow DAGs: one sentence, one DAG, one table each.

All of them parse alike here. A topic that needs something of its own is given as a `Pipeline`, or gets a sentence of its own.
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
