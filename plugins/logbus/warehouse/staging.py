"""An attempt's own tables: what a load writes before anything becomes public.

Two for each window and attempt: rows (the target's columns) and dead letters (the ledger's). Each row also carries
`_task`, the Spark task attempt that wrote it, because Spark may run a task twice. SEALING renames the tables, so
whoever still writes is waited for and whoever comes later fails; it keeps the winners' rows and drops `_task`. From
then on the tables never change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus.errors import AttemptSuperseded
from logbus.warehouse.names import TableName, quoted, staging
from logbus.warehouse.target import PARTITIONED, relation_kind
from logbus.windows import schema, tally
from logbus.windows.attempts import lock_if_current, sealed
from logbus.windows.model import Attempt, instant_text
from logbus.windows.places import SCHEMA, TASK_COLUMN

# Proves to ATTACH that every row belongs to the leaf, so that it need not look at them.
LEAF_CHECK = "_window_start_of_the_leaf"

# A writer that outlived its task holds its table to the end of its transaction; longer than this and the window fails.
SEAL_LOCK_TIMEOUT_MS = 30_000

UNDEFINED_TABLE = "42P01"


def create_staging(engine: Engine, attempts: Sequence[Attempt], target: TableName) -> tuple[list[Attempt], list[Attempt]]:
    """Makes the tables; returns the attempts that may go on and those that are superseded."""
    current: list[Attempt] = []
    superseded: list[Attempt] = []
    with engine.begin() as connection:
        is_partitioned = relation_kind(connection, target) == PARTITIONED
        for attempt in sorted(attempts, key=lambda attempt: attempt.window_id):
            try:
                lock_if_current(connection, attempt)
            except AttemptSuperseded:
                superseded.append(attempt)
                continue
            create_one(connection, attempt, target, is_partitioned)
            current.append(attempt)
    return current, superseded


def create_one(connection: Connection, attempt: Attempt, target: TableName, is_partitioned: bool) -> None:
    rows, dead = staging(attempt.staging_table), staging(attempt.dead_letter_table)
    start, end = instant_text(attempt.interval.start), instant_text(attempt.interval.end)
    check = f", constraint {LEAF_CHECK} check (_window_start >= '{start}' and _window_start < '{end}')" if is_partitioned else ""
    task = f"{TASK_COLUMN} bigint not null"
    copied = "including defaults including constraints" + ("" if is_partitioned else " including identity")
    connection.execute(text(f"create table {rows.sql} (like {target.sql} {copied}, {task}{check})"))
    connection.execute(text(f"create table {dead.sql} (like {SCHEMA}.{schema.dead_letter.name} including defaults, {task})"))


def seal(engine: Engine, attempt: Attempt, winners: Collection[int]) -> tally.Counted:
    """Closes the attempt's tables to every writer, leaves only what the winning task attempts wrote, and counts that.

    Nothing can change what was counted: so the commit need not count it again.

    Raises `AttemptSuperseded`: then the tables are, or soon will be, dropped by somebody newer.
    """
    with engine.begin() as connection:
        lock_if_current(connection, attempt)
        connection.execute(text(f"set local lock_timeout = {SEAL_LOCK_TIMEOUT_MS}"))
        for name in (attempt.staging_table, attempt.dead_letter_table):
            open_table, closed_table = staging(name), staging(sealed(name))
            connection.execute(text(f"alter table {open_table.sql} rename to {quoted(closed_table.name)}"))
            losers = text(f"delete from {closed_table.sql} where {TASK_COLUMN} <> all(:winners)")
            connection.execute(losers, {"winners": list(winners)})
            connection.execute(text(f"alter table {closed_table.sql} drop column {TASK_COLUMN}"))
    return count_sealed(engine, attempt)


def count_sealed(engine: Engine, attempt: Attempt) -> tally.Counted:
    rows, dead = (staging(sealed(name)).sql for name in (attempt.staging_table, attempt.dead_letter_table))
    try:
        with engine.connect() as connection:
            return tally.count(connection, tally.target_rows(rows), tally.dead_letters(dead))
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) == UNDEFINED_TABLE:
            raise AttemptSuperseded(f"the tables of attempt {attempt.number} are gone: a newer one has begun") from error
        raise
