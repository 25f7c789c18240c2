"""A separate table for a pipeline registered with another's table, in a ledger from before table names were canonical.

No row is touched: the contents of the shared table stay with the pipelines that keep it, and are right again once their windows
are reloaded; an audit shows which need it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, Engine, func, select, update

from logbus.errors import UserError
from logbus.ledger import schema
from logbus.ledger.attempts import SUPERSEDED, lock_all_windows
from logbus.ledger.rows import ATTEMPT_RUNNING, pipeline_row, to_pipeline
from logbus.ledger.table_names import canonical_table, check_target
from logbus.ledger.table_owners import others_of_table, refuse_shared_table

# A window with nothing public; its fingerprint stays, and determines what the next load has to read.
UNLOADED = {"loaded_attempt": None, "loaded_at": None, "audited_at": None, "audit_problems": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A pipeline that gets its own table, and those that keep the one they shared."""

    before: str
    after: str
    others: tuple[str, ...]
    window_count: int


def move(engine: Engine, pipeline_name: str, table: str, now: datetime, *, is_executed: bool) -> Moved:
    """Gives a pipeline that shares its table a separate one. Nothing it loaded is there, so its windows count as not loaded; what
    is left of the rows of those that keep the shared one is unknown, so theirs count as not audited. No row is touched."""
    check_target(table)
    with engine.begin() as connection:
        registered = to_pipeline(pipeline_row(connection, pipeline_name, lock=True))
        others = others_of_table(connection, registered)
        if not others:
            raise UserError(
                f"pipeline {pipeline_name} has the table {registered.table} for itself, and its rows lie there: register another "
                "pipeline for another table; both may read the same topic"
            )
        refuse_shared_table(connection, replace(registered, table=table))
        moved = Moved(
            before=canonical_table(registered.table),
            after=canonical_table(table),
            others=tuple(others),
            window_count=loaded_count(connection, pipeline_name),
        )
        if is_executed:
            give_table(connection, pipeline_name, moved, now)
    return moved


def loaded_count(connection: Connection, pipeline_name: str) -> int:
    window = schema.window
    query = select(func.count()).where(window.c.pipeline == pipeline_name, window.c.loaded_attempt.is_not(None))
    return int(connection.execute(query).scalar_one())


def give_table(connection: Connection, pipeline_name: str, moved: Moved, now: datetime) -> None:
    row_of, window, attempt = schema.pipeline, schema.window, schema.attempt
    connection.execute(update(row_of).where(row_of.c.name == pipeline_name).values(table_name=moved.after))
    lock_all_windows(connection, [pipeline_name, *moved.others])
    # Windows before attempts, the order in which a commit locks them: a commit in progress either completes first or is refused.
    connection.execute(update(window).where(window.c.pipeline == pipeline_name).values(UNLOADED))
    mine = select(window.c.id).where(window.c.pipeline == pipeline_name)
    running = (attempt.c.window_id.in_(mine), attempt.c.state == ATTEMPT_RUNNING)
    reason = f"the pipeline was moved to the table {moved.after}"
    connection.execute(update(attempt).where(*running).values(state=SUPERSEDED, ended_at=now, error=reason))
    connection.execute(update(window).where(window.c.pipeline.in_(moved.others)).values(audited_at=None))
