"""Which DAGs work on a pipeline: whoever may see one of them may see the pipeline's windows, and a rerun is a run of theirs.

Tasks tell of themselves when they freeze and when they begin attempts. A pipeline that only the command line works on has none.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus.windows import schema


def remember(engine: Engine, pipeline_name: str, dag_id: str, now: datetime) -> None:
    """Notes a DAG of a registered pipeline, unless it is known."""
    values = {"pipeline": pipeline_name, "dag_id": dag_id, "seen_at": now}
    with engine.begin() as connection:
        connection.execute(insert_if_absent(schema.pipeline_dag).values(values).on_conflict_do_nothing())


def dags_by_pipeline(connection: Connection) -> dict[str, list[str]]:
    """The DAGs of each pipeline that has some, the first seen first."""
    owner = schema.pipeline_dag
    query = select(owner.c.pipeline, owner.c.dag_id).order_by(owner.c.pipeline, owner.c.seen_at, owner.c.dag_id)
    found: dict[str, list[str]] = {}
    for pipeline, dag_id in connection.execute(query):
        found.setdefault(pipeline, []).append(dag_id)
    return found
