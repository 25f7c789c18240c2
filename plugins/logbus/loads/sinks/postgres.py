"""PostgreSQL: a table partitioned by hour that the load creates, or the user's own plain table; and an attempt's own tables, to
which its tasks write before anything becomes public.

Those are two for each window and attempt: rows (the target's columns) and dead letters (the ledger's; sinks whose rows are stored
elsewhere have these alone). Spark may run a task twice: a task writes in one transaction and reports its number, which the server
keeps with each row (`xmin`). SEALING renames the tables, which waits for current writers and makes later ones fail; it counts the
winners' rows with their checksum, and deletes any others (usually there are none; one query shows all). From then on the tables
never change.

Nothing else gives a staged row another number: nobody updates it, no vacuum comes (and freezing would keep the number). Rows of a
subtransaction would have one that no task reports: then the window would be refused. A row has 32 bits of it, which come round
after four billion transactions; an attempt lasts hours.

Rows, dead letters and ledger are in one database, so one transaction commits them all (see loads/commit.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError

from logbus import errors, model
from logbus.loads import attempts as attempts_of
from logbus.loads import commit, commit_checks, maintenance, tally, target
from logbus.loads.attempts import lock_if_current
from logbus.loads.engine import CONNECT_TIMEOUT_SECONDS, COPY_SETTINGS, libpq_uri
from logbus.loads.sinks import ROWS_OF_RECORD_MAX, MaintenanceOptions, PublicTable
from logbus.windows.migrations import create_schema
from logbus.windows.sql_errors import UNDEFINED_TABLE, sqlstate_of
from logbus.windows.table_names import (
    SYSTEM_COLUMNS,
    WINDOW_COLUMNS,
    TableName,
    leaf_name,
    parse_table,
    quoted,
    tables_of_attempt,
)

# A writer that outlived its task locks its table until its transaction ends; longer than this and the window fails.
SEAL_LOCK_TIMEOUT_MS = 30_000

ROWS_TIMEOUT_MS = 5_000  # somebody waits who looks at one record

# A table that lives for seconds needs no vacuum, and each ALTER on the way to its place would wait for one: autovacuum releases a
# table only to a lock that has waited for deadlock_timeout. A leaf that is attached gets its autovacuum back (commit.py).
WITHOUT_AUTOVACUUM = "with (autovacuum_enabled = false)"

WON = "xmin = any(cast(:winners as xid[]))"

PORT_DEFAULT = 5432


class PostgresSink:
    """A pipeline's table in the warehouse's own PostgreSQL."""

    name = "postgres"

    def __init__(self, pipeline: model.Pipeline, engine: Engine) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.target = parse_table(pipeline.table)
        self.filled: Mapping[str, str] | None = None  # the parser's columns, once the target has them

    def task_options(self, warehouse_url: URL) -> Mapping[str, Any]:
        return {"uri": libpq_uri(warehouse_url, **COPY_SETTINGS)}

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        columns_to_have = {**SYSTEM_COLUMNS, **columns}
        with self.engine.begin() as connection:
            target.lock_target(connection, self.target)
            if target.relation_exists(connection, self.target):
                present = target.table_columns(connection, self.target)
                target.validate_types(self.target, present, columns_to_have)
                missing = {name: kind for name, kind in columns_to_have.items() if name not in present}
                target.validate_new_names(self.target, present, missing)
                target.add_columns(connection, self.target, missing)
            else:
                target.validate_new_names(self.target, (), columns_to_have)
                create_schema(connection, self.target.schema)
                definitions = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns_to_have.items())
                connection.execute(text(f"create table {self.target.sql} ({definitions}) partition by range (_window_start)"))
        self.filled = columns

    def has_target(self) -> bool:
        with self.engine.connect() as connection:
            return target.relation_exists(connection, self.target)

    def public_table(self) -> PublicTable | None:
        """By the address of the warehouse; a server that is reached through a socket is on localhost."""
        with self.engine.connect() as connection:
            columns = target.table_columns(connection, self.target, with_generated=True)
        if not columns:
            return None
        url = self.engine.url
        server, path = (
            f"postgres://{url.host or 'localhost'}:{url.port or PORT_DEFAULT}",
            (str(url.database), self.target.schema, self.target.name),
        )
        return PublicTable(namespace=server, name=".".join(path), uri="/".join((server, *path)), columns=columns)

    def create_staging(self, attempts: Sequence[model.Attempt]) -> tuple[list[model.Attempt], list[model.Attempt]]:
        with self.engine.begin() as connection:
            current, superseded = lock_current(connection, attempts)
            has_leaves = target.has_leaves(connection, self.target)
            # COPY leaves out the window's columns, and those without a value: null stays null, whatever the user's defaults are.
            filled = [name for name in (*SYSTEM_COLUMNS, *(self.filled or ())) if name not in WINDOW_COLUMNS]
            no_defaults = ", ".join(f"alter {quoted(name)} drop default" for name in filled)
            for attempt in current:
                create_dead_letters(connection, attempt)
                start, end = model.instant_text(attempt.interval.start), model.instant_text(attempt.interval.end)
                like, check = "including defaults including constraints", ""
                if has_leaves:
                    check = f", constraint {target.LEAF_CHECK} check (_window_start >= '{start}' and _window_start < '{end}')"
                else:
                    like += " including identity"
                definition = f"(like {self.target.sql} {like}{check}) {WITHOUT_AUTOVACUUM}"
                rows = tables_of_attempt(attempt.staging_table).rows
                if target.relation_exists(connection, rows):  # the job is repeated, because it met a new schema
                    target.follow_columns(connection, rows, self.target)
                    continue
                connection.execute(text(f"create table {rows.sql} {definition}"))
                constants = f"alter _topic set default '{self.pipeline.topic}', alter _window_start set default '{start}'"
                connection.execute(text(f"alter table {rows.sql} {constants}, {no_defaults}"))
        return current, superseded

    def seal(self, attempt: model.Attempt, winners: Collection[str], files: Sequence[str]) -> tally.Counted:
        is_first = attempt.number == 1
        with nullcontext() if is_first else autovacuum_sent_away(self.engine, leaf_name(self.target, attempt.interval.start)):
            return seal(self.engine, attempt, winners, has_rows=True, filled=self.filled)

    def commit(self, load: commit_checks.SealedWindow, now: datetime) -> model.WindowCounts:
        try:
            with self.engine.begin() as connection:
                return commit.commit_in(connection, load, now, commit.replace_rows).counts
        except (OperationalError, InterfaceError) as error:
            if not commit.connection_died(error):
                raise errors.LoadFailed(f"window {load.attempt.interval} was not committed: {error.orig}") from error
            return commit.resolve_unknown(self.engine, load, error)

    def recount(self, window: model.FrozenWindow) -> Mapping[int, model.PartitionTally]:
        with self.engine.connect() as connection:
            return tally.count_window(connection, window, self.target)

    def rows_of(self, window: model.FrozenWindow, partition: int, offset: int) -> Sequence[Mapping[str, Any]]:
        values = {**target.window_parameters(window), "partition": partition, "offset": offset}
        condition = f"{target.ROWS_OF_WINDOW} and _partition = :partition and _offset = :offset"
        statement = text(f"select * from {self.target.sql} where {condition} limit {ROWS_OF_RECORD_MAX}")
        with self.engine.begin() as connection:
            # A table has no index on the offsets: the hour is searched, of a partitioned table its leaf alone.
            connection.execute(text(f"set local statement_timeout = {ROWS_TIMEOUT_MS}"))
            return [dict(row) for row in connection.execute(statement, values).mappings()]

    def compare_values(self, window: model.FrozenWindow) -> tally.ValuesReport:
        with self.engine.connect() as connection:
            return tally.join_reports(
                tally.compare_table(connection, window, self.target),
                tally.compare_dead_letters(connection, window),
            )

    def maintain(self, options: MaintenanceOptions) -> list[str]:
        """Merges the hourly leaves of closed days; a user's own table is left alone."""
        merged, left = maintenance.merge_closed_days(self.engine, self.target, options.now - options.keep_hourly, options.sleep)
        return [
            *(f"{day:%Y-%m-%d}: hourly leaves of {self.target} merged into one" for day in merged),
            *(f"{day:%Y-%m-%d}: {why}" for day, why in left.items()),
        ]

    def discard(self, attempt: model.Attempt) -> None:
        attempts_of.drop_stale_tables(self.engine, [attempt.window_id])


def lock_current(connection: Connection, attempts: Sequence[model.Attempt]) -> tuple[list[model.Attempt], list[model.Attempt]]:
    """Locks the windows whose newest attempts these still are, until the transaction ends; returns those attempts, and the
    others."""
    current: list[model.Attempt] = []
    superseded: list[model.Attempt] = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.window_id):
        try:
            lock_if_current(connection, attempt)
            current.append(attempt)
        except errors.AttemptSuperseded:
            superseded.append(attempt)
    return current, superseded


def create_dead_letters(connection: Connection, attempt: model.Attempt) -> None:
    dead = tables_of_attempt(attempt.staging_table).dead_letters
    definition = f"(like {tally.DEAD_LETTERS.sql} including defaults) {WITHOUT_AUTOVACUUM}"
    connection.execute(text(f"create table if not exists {dead.sql} {definition}"))


def seal(
    engine: Engine,
    attempt: model.Attempt,
    winners: Collection[str],
    *,
    has_rows: bool = False,
    filled: Mapping[str, str] | None = None,
) -> tally.Counted:
    """Closes the attempt's tables to every writer, keeps only what the winning task attempts wrote, counts that, and takes the
    checksum of its rows: of the system columns and those `filled` by the parser. Sinks whose rows are stored elsewhere have dead
    letters alone. What was counted can no longer change, so the commit need not count it again.

    Raises `AttemptSuperseded`: then a newer attempt has dropped the tables, or soon will.
    """
    tables = tables_of_attempt(attempt.staging_table)
    rows, dead = tables.sealed_rows, tables.sealed_dead_letters
    renamed = {tables.rows: rows, tables.dead_letters: dead} if has_rows else {tables.dead_letters: dead}
    with engine.begin() as connection:
        lock_if_current(connection, attempt)
        connection.execute(text(f"set local lock_timeout = {SEAL_LOCK_TIMEOUT_MS}"))
        for table, closed in renamed.items():
            connection.execute(text(f"alter table {table.sql} rename to {closed.name}"))
    won = {"winners": list(winners)}
    try:
        with engine.begin() as connection:
            covered = tally.covered_columns(target.table_columns(connection, rows), filled) if has_rows else None
            counted = tally.count(connection, rows.sql if has_rows else None, dead.sql, won, counted=WON, covered=covered)
            if counted.others:
                for closed in renamed.values():
                    connection.execute(text(f"delete from {closed.sql} where not {WON}"), won)
            return counted
    except ProgrammingError as error:
        if sqlstate_of(error) == UNDEFINED_TABLE:
            raise errors.AttemptSuperseded(f"the tables of attempt {attempt.number} are gone: a newer one has begun") from error
        raise


@contextmanager
def autovacuum_sent_away(engine: Engine, leaf: TableName) -> Iterator[None]:
    """Before a reload, whose swap would wait for it: autovacuum releases a leaf to a lock that has waited for deadlock_timeout. A
    connection of its own waits during the caller's work, and keeps the lock until then; no reader and no writer waits for it."""
    locked = "select exists(select from pg_locks where relation = to_regclass(:name) and mode = 'ShareUpdateExclusiveLock')"
    with engine.connect() as connection:
        is_at_work = connection.scalar(text(locked), {"name": leaf.identifier})
    lock_request = request_lock(engine, leaf) if is_at_work else None
    try:
        yield
        while lock_request is not None and lock_request.pgconn.get_result() is not None:
            pass
    finally:
        if lock_request is not None:
            lock_request.close()


def request_lock(engine: Engine, leaf: TableName) -> psycopg.Connection[Any] | None:
    """A connection that waits for the lock, or has it. None if the server takes no more connections: then the swap waits."""
    timeout_ms = commit.LEAF_LOCK_TIMEOUT_MS
    request = f"begin; set local lock_timeout = {timeout_ms}; lock table {leaf.sql} in share update exclusive mode"
    with suppress(psycopg.OperationalError):
        connection = psycopg.connect(libpq_uri(engine.url, connect_timeout=str(CONNECT_TIMEOUT_SECONDS)))
        connection.pgconn.send_query(request.encode())  # returns at once
        return connection
    return None
