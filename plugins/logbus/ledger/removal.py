"""Deleting a pipeline that was registered by mistake: a mistyped name, the wrong topic, a trial.

Only possible if nothing is loaded. Loaded rows are proven by their windows, so a pipeline with rows stays; it costs nothing once
no DAG works on it. Deleting a pipeline leaves its topic as it is, and the pipeline may be registered again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, delete, func, or_, select

from logbus.errors import PipelineConflict
from logbus.ledger import schema
from logbus.ledger.attempts import COMMITTED, is_alive
from logbus.ledger.pipeline_dags import dags_by_pipeline
from logbus.ledger.rows import pipeline_row
from logbus.model import instant_text
from logbus.wording import many

WINDOW, ATTEMPT = schema.window, schema.attempt

# What belongs to a window that was never loaded, and to the pipeline itself; in an order that violates no foreign key.
OF_WINDOWS = (ATTEMPT, schema.window_hour, schema.window_range)
OF_PIPELINE = (WINDOW, schema.boundary, schema.anchor, schema.pipeline_dag, schema.inferred_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is deleted with a pipeline: frozen, unloaded windows and attempts at them. `dag_ids` would register it again."""

    pipeline: str
    windows: int
    attempts: int
    dag_ids: tuple[str, ...]


def remove(engine: Engine, name: str, now: datetime, *, is_executed: bool) -> Removal:
    """Raises `PipelineUnknown`, or `PipelineConflict` if something is loaded or another run is at work on it."""
    with engine.begin() as connection:
        pipeline_row(connection, name, lock=True)  # a concurrent freeze waits, then finds it gone
        refuse_loaded(connection, name)
        refuse_at_work(connection, name, now)
        mine = select(WINDOW.c.id).where(WINDOW.c.pipeline == name)
        removal = Removal(
            pipeline=name,
            windows=connection.execute(select(func.count()).select_from(mine.subquery())).scalar_one(),
            attempts=connection.execute(select(func.count()).where(ATTEMPT.c.window_id.in_(mine))).scalar_one(),
            dag_ids=tuple(dags_by_pipeline(connection).get(name, ())),
        )
        if is_executed:
            for table in OF_WINDOWS:
                connection.execute(delete(table).where(table.c.window_id.in_(mine)))
            for table in OF_PIPELINE:
                connection.execute(delete(table).where(table.c.pipeline == name))
            connection.execute(delete(schema.pipeline).where(schema.pipeline.c.name == name))
    return removal


def refuse_loaded(connection: Connection, name: str) -> None:
    # Not by `loaded_attempt` alone: after `pipeline move` it is null until the hour is loaded again, while the rows and dead
    # letters of the previous load still exist.
    committed = select(ATTEMPT.c.window_id).where(ATTEMPT.c.state == COMMITTED)
    loaded = (WINDOW.c.pipeline == name, or_(WINDOW.c.loaded_attempt.is_not(None), WINDOW.c.id.in_(committed)))
    query = select(func.count(), func.min(WINDOW.c.starts_at), func.max(WINDOW.c.starts_at)).where(*loaded)
    count, first, last = connection.execute(query).one()
    if count:
        raise PipelineConflict(
            f"pipeline {name} has loaded {many(count, 'window')}, from {instant_text(first)} to {instant_text(last)}: what "
            "proves their rows stays in the ledger. Take its DAG away, and nothing loads it any more"
        )


def refuse_at_work(connection: Connection, name: str, now: datetime) -> None:
    query = select(func.count()).select_from(ATTEMPT.join(WINDOW, WINDOW.c.id == ATTEMPT.c.window_id))
    if connection.execute(query.where(WINDOW.c.pipeline == name, is_alive(now))).scalar_one():
        raise PipelineConflict(f"another run loads a window of {name} now: wait until that is over, or end it")
