"""An attempt's own tables: what a load writes before anything becomes public.

Two for each window and attempt: rows (the target's columns) and dead letters (the ledger's). Each row also carries
`_task`, the Spark task attempt that wrote it, because Spark may run a task twice. SEALING renames the tables, which waits
for current writers and makes later ones fail; it counts the winners' rows, deletes any others (usually there are none; one
query shows both) and drops `_task`. From then on the tables never change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus import errors, model
from logbus.loads import checksum, tally
from logbus.loads.attempts import lock_if_current, sealed
from logbus.loads.target import has_leaves, table_columns
from logbus.windows.sql_errors import UNDEFINED_TABLE, sqlstate_of
from logbus.windows.table_names import TASK_COLUMN, TableName, quoted, staging

# Proves to ATTACH that every row belongs to the leaf, so that it need not scan them.
LEAF_CHECK = "_window_start_of_the_leaf"

# A writer that outlived its task locks its table until its transaction ends; longer than this and the window fails.
SEAL_LOCK_TIMEOUT_MS = 30_000


TASK_DEFINITION = f"{TASK_COLUMN} bigint not null"

# A table that lives for seconds needs no vacuum, and each ALTER on the way to its place would wait for one: autovacuum releases a
# table only to a lock that has waited for deadlock_timeout. A leaf that is attached gets its autovacuum back (commit.py).
WITHOUT_AUTOVACUUM = "with (autovacuum_enabled = false)"


def create_staging(
    engine: Engine, attempts: Sequence[model.Attempt], target: TableName
) -> tuple[list[model.Attempt], list[model.Attempt]]:
    """Creates the tables; returns the attempts that may continue and those that are superseded."""

    def create(connection: Connection, attempt: model.Attempt) -> None:
        create_rows(connection, attempt, target)
        create_dead_letters(connection, attempt)

    return create_for_current(engine, attempts, create)


def create_for_current(
    engine: Engine, attempts: Sequence[model.Attempt], create: Callable[[Connection, model.Attempt], None]
) -> tuple[list[model.Attempt], list[model.Attempt]]:
    """Calls `create` for each attempt that is still its window's newest; returns those, and the others."""
    current: list[model.Attempt] = []
    superseded: list[model.Attempt] = []
    with engine.begin() as connection:
        for attempt in sorted(attempts, key=lambda attempt: attempt.window_id):
            try:
                lock_if_current(connection, attempt)
            except errors.AttemptSuperseded:
                superseded.append(attempt)
                continue
            create(connection, attempt)
            current.append(attempt)
    return current, superseded


def create_rows(connection: Connection, attempt: model.Attempt, target: TableName) -> None:
    is_partitioned = has_leaves(connection, target)
    rows = staging(attempt.staging_table)
    start, end = model.instant_text(attempt.interval.start), model.instant_text(attempt.interval.end)
    check = f", constraint {LEAF_CHECK} check (_window_start >= '{start}' and _window_start < '{end}')" if is_partitioned else ""
    copied = "including defaults including constraints" + ("" if is_partitioned else " including identity")
    definition = f"(like {target.sql} {copied}, {TASK_DEFINITION}{check}) {WITHOUT_AUTOVACUUM}"
    connection.execute(text(f"create table if not exists {rows.sql} {definition}"))


def create_dead_letters(connection: Connection, attempt: model.Attempt) -> None:
    dead = staging(attempt.dead_letter_table)
    definition = f"(like {checksum.DEAD_LETTERS.sql} including defaults, {TASK_DEFINITION}) {WITHOUT_AUTOVACUUM}"
    connection.execute(text(f"create table if not exists {dead.sql} {definition}"))


def seal(
    engine: Engine, attempt: model.Attempt, winners: Collection[int], filled: Mapping[str, str] | None = None
) -> tally.Counted:
    """Closes the attempt's tables to every writer, keeps only what the winning task attempts wrote, counts that and takes the
    checksum of its rows: of the system columns and those `filled` by the parser.

    What was counted can no longer change, so the commit need not count it again.

    Raises `AttemptSuperseded`: then a newer attempt has dropped the tables, or soon will.
    """
    names = [attempt.staging_table, attempt.dead_letter_table]
    close_tables(engine, attempt, names)
    rows = staging(sealed(names[0]))
    counted = count_sealed(engine, attempt, winners, tally.target_rows(rows.sql, counted=WON), names)
    with unless_superseded(attempt), engine.begin() as connection:
        return replace(counted, table=checksum.take(connection, rows, checksum.covered(table_columns(connection, rows), filled)))


def seal_dead_letters(engine: Engine, attempt: model.Attempt, winners: Collection[int]) -> tally.Counted:
    """The same for sinks whose rows are stored elsewhere."""
    names = [attempt.dead_letter_table]
    close_tables(engine, attempt, names)
    return count_sealed(engine, attempt, winners, tally.NO_ROWS, names)


WON = f"{TASK_COLUMN} = any(:winners)"


def close_tables(engine: Engine, attempt: model.Attempt, names: Iterable[str]) -> None:
    with engine.begin() as connection:
        lock_if_current(connection, attempt)
        connection.execute(text(f"set local lock_timeout = {SEAL_LOCK_TIMEOUT_MS}"))
        for name in names:
            connection.execute(text(f"alter table {staging(name).sql} rename to {quoted(sealed(name))}"))


def count_sealed(
    engine: Engine, attempt: model.Attempt, winners: Collection[int], rows: tally.RowSource, names: Iterable[str]
) -> tally.Counted:
    """One query over the closed tables: what the winners wrote, and whether any other task did."""
    dead = tally.dead_letters(staging(sealed(attempt.dead_letter_table)).sql, counted=WON)
    won = {"winners": list(winners)}
    with unless_superseded(attempt), engine.begin() as connection:
        counted = tally.count(connection, rows, dead, won)
        for table in [staging(sealed(name)).sql for name in names]:
            if counted.others:
                connection.execute(text(f"delete from {table} where not {WON}"), won)
            connection.execute(text(f"alter table {table} drop column {TASK_COLUMN}"))
        return counted


@contextmanager
def unless_superseded(attempt: model.Attempt) -> Iterator[None]:
    """Tables that are gone were dropped by a newer attempt."""
    try:
        yield
    except ProgrammingError as error:
        if sqlstate_of(error) == UNDEFINED_TABLE:
            raise errors.AttemptSuperseded(f"the tables of attempt {attempt.number} are gone: a newer one has begun") from error
        raise
