"""Attempts: which one may load a window now.

Beginning an attempt raises the window's number; from then on no older attempt can create staging tables or commit. That is
the whole fence: no process needs to be stopped, notified or waited for. What older attempts left behind is dropped by the
next one, with a short lock timeout, because a driver that outlives its task may still hold a lock on it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Integer,
    and_,
    func,
    insert,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import OperationalError

from logbus.errors import AttemptSuperseded, ErrorBudgetExceeded, LogbusError, LogChanged, OtherRecords, WindowUnknown
from logbus.ledger import schema
from logbus.ledger.definition import Definition, definition_of
from logbus.ledger.fixed import refuse_elsewhere, refuse_fixed
from logbus.ledger.heartbeats import HEARTBEAT_EXPIRY
from logbus.ledger.rows import ATTEMPT_RUNNING, Row, pipeline_row, to_attempt, to_pipeline
from logbus.ledger.sql_errors import LOCK_NOT_AVAILABLE, sqlstate_of
from logbus.ledger.table_names import STAGING_SCHEMA
from logbus.ledger.table_owners import refuse_shared_table
from logbus.model import Attempt, Interval, Pipeline, TaskKey, instant_text, parse_instant
from logbus.wording import several

COMMITTED = "committed"
FAILED = "failed"
SUPERSEDED = "superseded"

# A stale table that is still being written to is left for the next attempt to drop; a load must not wait for it.
DROP_LOCK_TIMEOUT_MS = 200

# A client that holds a window's lock and is idle for this long has lost its network or its machine, and the server has not
# noticed: TCP would take two hours. A file sink's own commit happens during that time; it takes seconds.
HOLD_SILENTLY_MS_MAX = 600_000

# Random, so that no two attempts are mistaken for each other, whichever ledger numbered them.
KEY_BYTES = 8

NAMED_MAX = 5  # windows that an error names

# How much of an error's text is kept; a Spark stack trace can be a megabyte.
ERROR_CHARACTERS_MAX = 4_000


def begin(
    engine: Engine,
    pipeline_name: str,
    starts: Sequence[datetime],
    run_id: str,
    try_number: int,
    now: datetime,
    task: TaskKey | None = None,
    pipeline: Pipeline | None = None,
    accept_other_records: Collection[datetime] = (),
    check: Callable[[Connection], None] = lambda connection: None,
) -> list[Attempt]:
    """A new attempt for each window, in the order of `starts`. All or none.

    They are loaded as `pipeline` defines, by default as it is registered now, whatever is registered while they run. Those at
    `accept_other_records` may replace what is loaded with other records than it was loaded from (logbus.warehouse.same_records).
    `check` is called while the windows are locked, and raises if none shall begin.
    """
    with engine.begin() as connection:
        definition = definition_to_load(connection, pipeline_name, pipeline)
        rows = lock_windows(connection, pipeline_name, starts)
        check(connection)
        attempts = {row["starts_at"]: begin_one(connection, row, definition, run_id, try_number, now, task) for row in rows}
        accept(connection, [attempts[start] for start in starts if start in accept_other_records])
    # After the commit, not in it: only now can no older attempt create a table any more, and a table that cannot be dropped must
    # not take the new attempts back.
    drop_leftovers(engine, [row["id"] for row in rows])
    return [attempts[start] for start in starts]


def definition_to_load(connection: Connection, pipeline_name: str, wanted: Pipeline | None) -> Definition:
    """Refused if the rows would not end up where the ledger looks for them, or among those of another pipeline. The pipeline's
    row stays locked FOR SHARE until the transaction ends: from then on a running attempt shows where rows are written."""
    registered = to_pipeline(pipeline_row(connection, pipeline_name, share=True))
    refuse_shared_table(connection, registered)
    if wanted is None:
        return definition_of(registered)
    refuse_fixed(registered, wanted)
    refuse_elsewhere(registered, wanted)
    return definition_of(wanted)


def hold_briefly(connection: Connection) -> None:
    """The server ends this transaction if its client falls silent."""
    connection.execute(text(f"set local idle_in_transaction_session_timeout = {HOLD_SILENTLY_MS_MAX}"))


def lock_windows(connection: Connection, pipeline_name: str, starts: Iterable[datetime]) -> list[Row]:
    """Locks the windows' rows in the order of their ids, as every transaction does, so that none deadlock."""
    hold_briefly(connection)
    window, wanted = schema.window, set(starts)
    mine = (window.c.pipeline == pipeline_name, schema.among(window.c.starts_at, wanted))
    query = select(window).where(*mine).order_by(window.c.id).with_for_update()
    rows: list[Row] = list(connection.execute(query).mappings())
    missing = sorted(wanted - {row["starts_at"] for row in rows})
    if missing:
        names = several([instant_text(start) for start in missing], NAMED_MAX)
        raise WindowUnknown(
            f"no frozen window of {pipeline_name} starts at {names}: freeze it first (`logbus window ls` shows them)"
        )
    return rows


def lock_all_windows(connection: Connection, pipeline_names: Collection[str]) -> None:
    """The same before a statement that changes many windows: on its own it would lock them in the table's physical order."""
    window = schema.window
    mine = window.c.pipeline.in_(pipeline_names)
    connection.execute(select(window.c.id).where(mine).order_by(window.c.id).with_for_update())


def begin_one(
    connection: Connection,
    row: Row,
    definition: Definition,
    run_id: str,
    try_number: int,
    now: datetime,
    task: TaskKey | None = None,
) -> Attempt:
    window, attempt, number = schema.window, schema.attempt, row["last_attempt"] + 1
    key = secrets.token_hex(KEY_BYTES)
    # With the key, since an attempt that a restored ledger has lost may have had this number, and may still be writing.
    name = f"w{row['id']}_a{number}_{key}"
    values = {
        "window_id": row["id"],
        "number": number,
        "state": ATTEMPT_RUNNING,
        "run_id": run_id,
        "try_number": try_number,
        "staging_table": name,
        "dead_letter_table": f"{name}_dead",
        "key": key,
        "began_at": now,
        "heartbeat_at": now,
        "definition": definition,
        **({} if task is None else {"dag_id": task.dag_id, "task_id": task.task_id, "map_index": task.map_index}),
    }
    # In the transaction that inserts the newer one, under the window's lock: no two attempts at a window are ever running at the
    # same time, and a commit of the older one, which takes the same lock, either completes before this or is refused.
    older = (attempt.c.window_id == row["id"], attempt.c.state == ATTEMPT_RUNNING)
    reason = f"attempt {number} of run {run_id} took over"
    connection.execute(update(attempt).where(*older).values(state=SUPERSEDED, ended_at=now, error=reason))
    connection.execute(insert(attempt).values(values))
    connection.execute(update(window).where(window.c.id == row["id"]).values(last_attempt=number))
    return to_attempt(values, row["pipeline"], Interval(row["starts_at"], row["ends_at"]))


def accept(connection: Connection, attempts: Iterable[Attempt]) -> None:
    for attempt in attempts:
        connection.execute(update(schema.attempt).where(among_attempts([attempt])).values(accepts_other_records=True))


def among_attempts(attempts: Iterable[Attempt], row_of: FromClause = schema.attempt) -> ColumnElement[bool]:
    """With two parameters for all of them, as `schema.among`."""
    pairs = [(attempt.window_id, attempt.number) for attempt in attempts]
    ids, numbers = literal([one for one, _ in pairs], ARRAY(BigInteger)), literal([one for _, one in pairs], ARRAY(Integer))
    return tuple_(row_of.c.window_id, row_of.c.number).in_(select(func.unnest(ids), func.unnest(numbers)))


def is_alive(now: datetime) -> ColumnElement[bool]:
    """The attempt is running and has sent a heartbeat recently."""
    row_of = schema.attempt
    return and_(row_of.c.state == ATTEMPT_RUNNING, row_of.c.heartbeat_at > now - HEARTBEAT_EXPIRY)


def find(connection: Connection, pipeline_name: str, token: str) -> Attempt:
    """The attempt that a token names, whether or not it is still the newest."""
    start_text, _, number_text = token.rpartition("=")
    window, attempt = schema.window, schema.attempt
    query = (
        select(attempt, window.c.starts_at, window.c.ends_at)
        .join(window, window.c.id == attempt.c.window_id)
        .where(window.c.pipeline == pipeline_name, window.c.starts_at == parse_instant(start_text))
        .where(attempt.c.number == int(number_text))
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise WindowUnknown(f"pipeline {pipeline_name} has no attempt {token}: attempts are taken before the load is submitted")
    return to_attempt(row, pipeline_name, Interval(row["starts_at"], row["ends_at"]))


def lock_if_current(connection: Connection, attempt: Attempt) -> None:
    """Locks the window's row until the transaction ends; `AttemptSuperseded` unless the attempt is its newest and still running.

    A ledger restored from a backup may assign the same number a second time: the key tells the two apart.
    """
    hold_briefly(connection)
    window, row_of = schema.window, schema.attempt
    newest = connection.execute(
        select(window.c.last_attempt).where(window.c.id == attempt.window_id).with_for_update()
    ).scalar_one()
    # The attempt's row as well: a process that tries to mark it failed has to wait, and then finds it committed.
    query = select(row_of.c.state, row_of.c.key).where(among_attempts([attempt]))
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None or row.key != attempt.key:
        raise AttemptSuperseded(
            f"the ledger was restored from a backup since attempt {attempt.number} at window {attempt.interval} of "
            f"{attempt.pipeline} began, and knows nothing of it: load the window again"
        )
    if newest != attempt.number or row.state != ATTEMPT_RUNNING:
        raise AttemptSuperseded(
            f"attempt {attempt.number} at window {attempt.interval} of {attempt.pipeline} is {row.state}; the newest is {newest}"
        )


def state_of(engine: Engine, attempt: Attempt) -> str:
    with engine.connect() as connection:
        state: str = connection.execute(select(schema.attempt.c.state).where(among_attempts([attempt]))).scalar_one()
        return state


def heartbeat(engine: Engine, attempts: Sequence[Attempt], now: datetime) -> None:
    """All in one statement. Locked rows are skipped: an attempt that is being committed or superseded needs no heartbeat."""
    row_of = schema.attempt
    running = select(row_of.c.window_id, row_of.c.number).where(among_attempts(attempts), row_of.c.state == ATTEMPT_RUNNING)
    held = running.with_for_update(skip_locked=True).cte("held")
    same = (row_of.c.window_id == held.c.window_id, row_of.c.number == held.c.number)
    with engine.begin() as connection:
        connection.execute(update(row_of).where(*same).values(heartbeat_at=now))


def end_expired(engine: Engine, now: datetime, expiry: timedelta = HEARTBEAT_EXPIRY) -> list[Attempt]:
    """Marks attempts without a heartbeat for `expiry` as failed and drops what they staged; returns them.

    One that is alive after all is refused when it commits, as it would be after a newer attempt.
    """
    window, row_of = schema.window, schema.attempt
    silent = (row_of.c.state == ATTEMPT_RUNNING, row_of.c.heartbeat_at < now - expiry)
    query = (
        select(row_of, window.c.pipeline, window.c.starts_at, window.c.ends_at)
        .join(window, window.c.id == row_of.c.window_id)
        .where(*silent)
        .order_by(row_of.c.window_id)
        .with_for_update(of=row_of, skip_locked=True)
    )
    with engine.begin() as connection:
        rows = connection.execute(query).mappings().all()
        ended = [to_attempt(row, row["pipeline"], Interval(row["starts_at"], row["ends_at"])) for row in rows]
        set_where_running(connection, ended, {"state": FAILED, "ended_at": now, "error": f"no heartbeat for {expiry}"})
    drop_leftovers(engine, [attempt.window_id for attempt in ended])
    return ended


def fail(
    engine: Engine,
    attempts: Sequence[Attempt],
    error: str,
    now: datetime,
    samples: Mapping[str, Any] | None = None,
    kind: str | None = None,
) -> None:
    """Ends the attempts that are still running and drops what they staged. Committed or superseded ones stay as they are.

    `samples` (JSON) describe records that caused the failure; `kind` is the error's class, if the driver itself reports it.
    """
    values: dict[str, Any] = {"state": FAILED, "ended_at": now, "error": error[:ERROR_CHARACTERS_MAX], "error_kind": kind}
    if samples is not None:
        values["error_samples"] = dict(samples)
    with engine.begin() as connection:
        set_where_running(connection, attempts, values)
    drop_leftovers(engine, [attempt.window_id for attempt in attempts])


# Driver errors that no retry can fix.
BEYOND_RETRY: Mapping[str, type[LogbusError]] = {kind.__name__: kind for kind in (ErrorBudgetExceeded, OtherRecords, LogChanged)}


def beyond_retry(engine: Engine, attempts: Sequence[Attempt]) -> LogbusError | None:
    """Why the first of the attempts failed for good, if any did: too much did not parse, or the log holds other records."""
    row_of = schema.attempt
    final = (among_attempts(attempts), row_of.c.error_kind.in_(list(BEYOND_RETRY)))
    query = select(row_of.c.error_kind, row_of.c.error).where(*final).order_by(row_of.c.window_id).limit(1)
    with engine.connect() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else BEYOND_RETRY[row.error_kind](row.error)


def set_where_running(connection: Connection, attempts: Iterable[Attempt], values: dict[str, Any]) -> None:
    row_of = schema.attempt
    for attempt in sorted(attempts, key=lambda attempt: attempt.window_id):  # the order in which all transactions lock
        mine = (among_attempts([attempt]), row_of.c.key == attempt.key, row_of.c.state == ATTEMPT_RUNNING)
        connection.execute(update(row_of).where(*mine).values(values))


def drop_leftovers(engine: Engine, window_ids: Sequence[int]) -> None:
    """Drops the tables of attempts that can no longer commit. A locked table stays for the next call."""
    row_of = schema.attempt
    over = row_of.c.state.in_([FAILED, SUPERSEDED])
    query = select(row_of).where(schema.among(row_of.c.window_id, window_ids), over, row_of.c.cleaned.is_(False))
    with engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    for row in rows:
        drop_one(engine, row)


def drop_one(engine: Engine, row: Row) -> None:
    row_of = schema.attempt
    names = [name for table in (row["staging_table"], row["dead_letter_table"]) for name in (table, sealed(table))]
    with unless_locked(), engine.begin() as connection:
        drop_tables(connection, names)
        mine = (row_of.c.window_id == row["window_id"], row_of.c.number == row["number"])
        connection.execute(update(row_of).where(*mine).values(cleaned=True))


def drop_tables(connection: Connection, names: Iterable[str]) -> None:
    connection.execute(text(f"set local lock_timeout = {DROP_LOCK_TIMEOUT_MS}"))
    connection.execute(text("drop table if exists " + ", ".join(f"{STAGING_SCHEMA}.{name}" for name in names)))


@contextmanager
def unless_locked() -> Iterator[None]:
    """Around a transaction that drops tables: if one of them is locked, all is left to the next call."""
    try:
        yield
    except OperationalError as error:
        if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
            raise


def sealed(table: str) -> str:
    """The name a staging table gets when it is sealed: later writes to the old name fail."""
    return f"{table}_sealed"
