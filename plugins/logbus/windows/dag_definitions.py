"""Which DAGs work on a pipeline, and how each of them defines it.

A user who may see one of its DAGs may see the pipeline's windows, and a rerun is a run of such a DAG. Tasks register their DAG
when they freeze and when they begin attempts. A pipeline that only the command line works on has no DAGs.

Two DAGs may work on one pipeline if they define it alike. If they do not, the one that was edited last counts: a DAG whose
definition has not changed alters nothing while another DAG defines the pipeline as it is registered, and neither does a new DAG.
So two contradicting DAGs never silently take turns, and a definition that both share can be edited: whichever runs first changes
the pipeline, and the other agrees.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import errors, model
from logbus.windows import schema
from logbus.windows.definition import Definition, definition_of, differences, in_words


def remember_definition(connection: Connection, pipeline: model.Pipeline, dag_id: str, now: datetime) -> None:
    """Stores the DAG and how it defines the pipeline now."""
    definition = definition_of(pipeline)
    values = {"pipeline": pipeline.name, "dag_id": dag_id, "seen_at": now, "definition": definition}
    statement = insert_if_absent(schema.pipeline_dag).values(values)
    is_other = schema.pipeline_dag.c.definition.is_distinct_from(statement.excluded.definition)  # usually it is unchanged
    keys, news = ["pipeline", "dag_id"], {"definition": definition}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=news, where=is_other))


def definitions_by_dag(connection: Connection, pipeline_name: str) -> dict[str, Definition | None]:
    """How each DAG of the pipeline defined it when it last ran; None if it never did, or is forgotten."""
    owner = schema.pipeline_dag
    query = select(owner.c.dag_id, owner.c.definition).where(owner.c.pipeline == pipeline_name).order_by(owner.c.dag_id)
    return {row.dag_id: row.definition for row in connection.execute(query)}


def refuse_contradiction(connection: Connection, registered: model.Pipeline, proposed: model.Pipeline, dag_id: str) -> None:
    """`PipelineConflict` if the DAG was not edited and contradicts another that defines the pipeline as it is registered."""
    standing, definition_given = definition_of(registered), definition_of(proposed)
    given = definitions_by_dag(connection, registered.name)
    others = [other for other, definition in given.items() if other != dag_id and definition == standing]
    was_edited = given.get(dag_id) not in (None, definition_given)
    if definition_given == standing or was_edited or not others:
        return
    name, other = registered.name, others[0]
    raise errors.PipelineConflict(
        f"DAG {dag_id} defines pipeline {name} otherwise than DAG {other} does, and nothing was changed ({other} against "
        f"{dag_id}): {in_words(differences(registered, proposed))}. Define it once and give that to both: "
        "CLICKS = define_pipeline(...), hourly_ingest(CLICKS), catch_up(CLICKS). "
        f"If DAG {other} is gone: `logbus pipeline forget-dag {name} {other}`"
    )


def standing_for_another(engine: Engine, pipeline: model.Pipeline) -> list[str]:
    """The DAGs that defined the pipeline differently when they last ran, by name."""
    definition_now = definition_of(pipeline)
    with engine.connect() as connection:
        given = definitions_by_dag(connection, pipeline.name)
    return [dag_id for dag_id, definition in given.items() if definition not in (None, definition_now)]


def forget(engine: Engine, pipeline_name: str, dag_id: str) -> None:
    """From now on the DAG has no definition, until it runs again. Who may see the pipeline does not change."""
    owner = schema.pipeline_dag
    of_dag = (owner.c.pipeline == pipeline_name, owner.c.dag_id == dag_id)
    with engine.begin() as connection:
        forgotten = connection.execute(update(owner).where(*of_dag).values(definition=None).returning(owner.c.dag_id)).first()
        if forgotten is None:
            dags = ", ".join(definitions_by_dag(connection, pipeline_name)) or "none at all"
            raise errors.PipelineUnknown(f"no DAG {dag_id!r} has worked on pipeline {pipeline_name!r}; these have: {dags}")


def dags_by_pipeline(connection: Connection) -> dict[str, list[str]]:
    """The DAGs of each pipeline that has any, in the order they were first seen."""
    owner = schema.pipeline_dag
    query = select(owner.c.pipeline, owner.c.dag_id).order_by(owner.c.pipeline, owner.c.seen_at, owner.c.dag_id)
    dag_ids: dict[str, list[str]] = {}
    for pipeline, dag_id in connection.execute(query):
        dag_ids.setdefault(pipeline, []).append(dag_id)
    return dag_ids
