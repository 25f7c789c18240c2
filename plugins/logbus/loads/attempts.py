"""Attempts: which one may load a window now.

Beginning an attempt raises the window's number; from then on no older attempt can create staging tables or commit. That is
the whole fence: no process needs to be stopped, notified or waited for. What older attempts left behind is dropped by the
next one, with a short lock timeout, because a driver that outlives its task may still hold a lock on it.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from logbus import errors, formatting, model
from logbus.windows import schema, sql_errors
from logbus.windows.rows import (
    ATTEMPT_RUNNING,
    FAILED,
    HEARTBEAT_EXPIRY,
    HOLD_BRIEFLY,
    SUPERSEDED,
    Definition,
    Row,
    among,
    is_alive,
    to_attempt,
)
from logbus.windows.table_names import STAGING_SCHEMA, tables_of_attempt

# A stale table that is still being written to is left for the next attempt to drop; a load must not wait for it.
DROP_LOCK_TIMEOUT_MS = 200

# Random, so that no two attempts are mistaken for each other, whichever ledger numbered them.
KEY_BYTES = 8


def begin(
    connection: sa.Connection,
    row: Row,
    definition: Definition,
    run_id: str,
    try_number: int,
    now: datetime,
    task: model.TaskKey | None = None,
    accepts_other_records: bool = False,
) -> model.Attempt:
    window, attempt, number = schema.window, schema.attempt, row["last_attempt"] + 1
    key = secrets.token_hex(KEY_BYTES)
    # With the key, since an attempt that a restored ledger has lost may have had this number, and may still be writing.
    tables = tables_of_attempt(f"w{row['id']}_a{number}_{key}")
    values = {
        "window_id": row["id"],
        "number": number,
        "state": ATTEMPT_RUNNING,
        "run_id": run_id,
        "try_number": try_number,
        "staging_table": tables.rows.name,
        "dead_letter_table": tables.dead_letters.name,
        "key": key,
        "began_at": now,
        "heartbeat_at": now,
        "definition": definition,
        "accepts_other_records": accepts_other_records,
        **({} if task is None else {"dag_id": task.dag_id, "task_id": task.task_id, "map_index": task.map_index}),
    }
    # In the transaction that inserts the newer one, under the window's lock: no two attempts at a window are ever running at the
    # same time, and a commit of the older one, which takes the same lock, either completes before this or is refused.
    older = (attempt.c.window_id == row["id"], attempt.c.state == ATTEMPT_RUNNING)
    reason = f"attempt {number} of run {run_id} took over"
    connection.execute(sa.update(attempt).where(*older).values(state=SUPERSEDED, ended_at=now, error=reason))
    connection.execute(sa.insert(attempt).values(values))
    connection.execute(sa.update(window).where(window.c.id == row["id"]).values(last_attempt=number))
    return to_attempt(values, row["pipeline"], model.Interval(row["starts_at"], row["ends_at"]))


def among_attempts(attempts: Iterable[model.Attempt], row_of: sa.FromClause = schema.attempt) -> sa.ColumnElement[bool]:
    """With two parameters for all of them, as `among`."""
    pairs = [(attempt.window_id, attempt.number) for attempt in attempts]
    ids, numbers = (
        sa.literal([number for number, _ in pairs], sa.ARRAY(sa.BigInteger)),
        sa.literal([number for _, number in pairs], sa.ARRAY(sa.Integer)),
    )
    return sa.tuple_(row_of.c.window_id, row_of.c.number).in_(sa.select(sa.func.unnest(ids), sa.func.unnest(numbers)))


def at_work(
    connection: sa.Connection, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
) -> dict[datetime, str]:
    """`Ledger.at_work_elsewhere`, in a transaction."""
    window, attempt = schema.window, schema.attempt
    query = (
        sa.select(window.c.starts_at, attempt.c.number, attempt.c.run_id, attempt.c.heartbeat_at)
        .join(attempt, attempt.c.window_id == window.c.id)
        .where(window.c.pipeline == pipeline_name, is_alive(now))
    )
    if run_id is not None:
        query = query.where(attempt.c.run_id != run_id)
    # All of the pipeline's, of which few are being loaded: `starts` may be more windows than a statement has parameters.
    chosen = set(starts)
    rows = [row for row in connection.execute(query) if row.starts_at in chosen]
    return {row.starts_at: _attempt_text(row, (now - row.heartbeat_at).total_seconds()) for row in rows}


def _attempt_text(row: Any, silent_seconds: float) -> str:
    hour = model.instant_text(row.starts_at)
    return f"attempt {row.number} at {hour} by run {row.run_id}, last heartbeat {silent_seconds:.0f} s ago"


def find(connection: sa.Connection, pipeline_name: str, tokens: Sequence[str]) -> list[model.Attempt]:
    """The attempts that the tokens name, oldest window first, whether or not they are still the newest."""
    window, attempt = schema.window, schema.attempt
    pairs = (token.rpartition("=") for token in tokens)
    named = {(model.parse_instant(start), int(number)) for start, _, number in pairs}
    query = (
        sa.select(attempt, window.c.starts_at, window.c.ends_at)
        .join(window, window.c.id == attempt.c.window_id)
        .where(window.c.pipeline == pipeline_name, among(window.c.starts_at, {start for start, _ in named}))
        .order_by(window.c.starts_at, attempt.c.number)
    )
    rows = [row for row in connection.execute(query).mappings() if (row["starts_at"], row["number"]) in named]
    if missing := named - {(row["starts_at"], row["number"]) for row in rows}:
        start, number = min(missing)
        raise errors.WindowUnknown(
            f"pipeline {pipeline_name} has no attempt {model.instant_text(start)}={number}: attempts are taken before the load "
            "is submitted"
        )
    return [to_attempt(row, pipeline_name, model.Interval(row["starts_at"], row["ends_at"])) for row in rows]


def lock_if_current(connection: sa.Connection, attempt: model.Attempt) -> None:
    """Locks the window's row until the transaction ends; `AttemptSuperseded` unless the attempt is its newest and still running.

    A ledger restored from a backup may assign the same number a second time: the key tells the two apart.
    """
    connection.execute(HOLD_BRIEFLY)
    window, row_of = schema.window, schema.attempt
    newest = connection.execute(
        sa.select(window.c.last_attempt).where(window.c.id == attempt.window_id).with_for_update()
    ).scalar_one()
    # The attempt's row as well: a process that tries to mark it failed has to wait, and then finds it committed.
    query = sa.select(row_of.c.state, row_of.c.key).where(among_attempts([attempt]))
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None or row.key != attempt.key:
        raise errors.AttemptSuperseded(
            f"the ledger was restored from a backup since attempt {attempt.number} at window {attempt.interval} of "
            f"{attempt.pipeline} began, and knows nothing of it: load the window again"
        )
    if newest != attempt.number or row.state != ATTEMPT_RUNNING:
        raise errors.AttemptSuperseded(
            f"attempt {attempt.number} at window {attempt.interval} of {attempt.pipeline} is {row.state}; the newest is {newest}"
        )


def state_of(engine: sa.Engine, attempt: model.Attempt) -> str:
    with engine.connect() as connection:
        state: str = connection.execute(sa.select(schema.attempt.c.state).where(among_attempts([attempt]))).scalar_one()
        return state


def end_expired(engine: sa.Engine, now: datetime, expiry: timedelta = HEARTBEAT_EXPIRY) -> list[model.Attempt]:
    """Marks attempts without a heartbeat for `expiry` as failed and drops what they staged; returns them.

    One that is alive after all is refused when it commits, as it would be after a newer attempt.
    """
    window, row_of = schema.window, schema.attempt
    silent = (row_of.c.state == ATTEMPT_RUNNING, row_of.c.heartbeat_at < now - expiry)
    query = (
        sa.select(row_of, window.c.pipeline, window.c.starts_at, window.c.ends_at)
        .join(window, window.c.id == row_of.c.window_id)
        .where(*silent)
        .order_by(row_of.c.window_id)
        .with_for_update(of=row_of, skip_locked=True)
    )
    with engine.begin() as connection:
        rows = connection.execute(query).mappings().all()
        ended = [to_attempt(row, row["pipeline"], model.Interval(row["starts_at"], row["ends_at"])) for row in rows]
        set_where_running(connection, ended, {"state": FAILED, "ended_at": now, "error": f"no heartbeat for {expiry}"})
    drop_stale_tables(engine, [attempt.window_id for attempt in ended])
    return ended


def set_where_running(connection: sa.Connection, attempts: Iterable[model.Attempt], values: dict[str, Any]) -> None:
    row_of = schema.attempt
    for attempt in sorted(attempts, key=lambda attempt: attempt.window_id):  # the order in which all transactions lock
        still_running = (among_attempts([attempt]), row_of.c.key == attempt.key, row_of.c.state == ATTEMPT_RUNNING)
        connection.execute(sa.update(row_of).where(*still_running).values(values))


def drop_stale_tables(engine: sa.Engine, window_ids: Sequence[int]) -> None:
    """Drops the tables of attempts that can no longer commit. A locked table stays for the next call."""
    row_of = schema.attempt
    over = row_of.c.state.in_([FAILED, SUPERSEDED])
    query = sa.select(row_of).where(among(row_of.c.window_id, window_ids), over, row_of.c.cleaned.is_(False))
    with engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    for row in rows:
        _drop_tables_of(engine, row)


def _drop_tables_of(engine: sa.Engine, row: Row) -> None:
    row_of = schema.attempt
    with unless_locked(), engine.begin() as connection:
        drop_tables(connection, [table.name for table in tables_of_attempt(row["staging_table"])])
        is_attempt = (row_of.c.window_id == row["window_id"], row_of.c.number == row["number"])
        connection.execute(sa.update(row_of).where(*is_attempt).values(cleaned=True))


def drop_tables(connection: sa.Connection, names: Iterable[str]) -> None:
    connection.execute(sa.text(f"set local lock_timeout = {DROP_LOCK_TIMEOUT_MS}"))
    connection.execute(sa.text("drop table if exists " + ", ".join(f"{STAGING_SCHEMA}.{name}" for name in names)))


@contextmanager
def unless_locked() -> Iterator[None]:
    """Around a transaction that drops tables: if one of them is locked, all is left to the next call."""
    try:
        yield
    except OperationalError as error:
        if sql_errors.sqlstate_of(error) != sql_errors.LOCK_NOT_AVAILABLE:
            raise


# The outcome of attempts according to the ledger, whatever their driver's exit status or a cluster manager reports.
#
# A cluster manager reports on a driver, possibly an earlier one; it knows nothing about windows. Only a commit counts, and that
# is in the ledger. So the submitter of a load asks here for its outcome.


# The error of an attempt whose program ended and reported success.
ENDED_WITHOUT_COMMIT = "the Spark application ended without an error and without committing this window"
NAMED_MAX = 5  # windows named in an error; the ledger has all


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """An attempt as it is in the ledger, the newest attempt at its window, and the attempt whose rows the window has.

    `newest_is_alive`: it is running and has sent a heartbeat recently. `heartbeat_at` is `began_at` until a driver sends one.
    """

    attempt: model.Attempt
    state: str
    began_at: datetime
    heartbeat_at: datetime
    loaded_attempt: int | None
    newest: int
    newest_state: str
    newest_run_id: str
    newest_is_alive: bool
    error: str | None = None

    @property
    def is_loaded_by_newer(self) -> bool:
        """An attempt that began after this one has committed: it superseded this one, or loaded the window again since."""
        return self.loaded_attempt is not None and self.loaded_attempt > self.attempt.number

    @property
    def is_loaded(self) -> bool:
        """Loaded by this attempt or a newer one: what the run that began it asked for."""
        return self.loaded_attempt is not None and self.loaded_attempt >= self.attempt.number

    @property
    def is_taken_over(self) -> bool:
        """A newer attempt is at work on the window, and it has not been loaded since."""
        return not self.is_loaded and self.newest > self.attempt.number and self.newest_is_alive

    def may_commit(self, now: datetime, startup_timeout: timedelta) -> bool:
        """Whether it is worth waiting for: its driver is alive, or has not sent a heartbeat yet and may still be starting."""
        patience = startup_timeout if self.heartbeat_at == self.began_at else HEARTBEAT_EXPIRY
        return self.state == ATTEMPT_RUNNING and now < self.heartbeat_at + patience

    @property
    def newest_doing(self) -> str:
        if self.newest_state != ATTEMPT_RUNNING:
            return self.newest_state
        return "at work on it" if self.newest_is_alive else "running, without a heartbeat"

    @property
    def why(self) -> str:
        """One clause for a window that is not loaded."""
        start = model.instant_text(self.attempt.interval.start)
        if self.newest > self.attempt.number:
            newer = f"attempt {self.newest} of run {self.newest_run_id}"
            return f"{start}: {newer} took over from attempt {self.attempt.number} and is {self.newest_doing}"
        return f"{start}: attempt {self.attempt.number} is {self.state}" + (f" ({self.error})" if self.error else "")


def why_not_loaded(outcomes: Sequence[AttemptOutcome]) -> errors.LoadFailed:
    """The error to raise if some of the windows are not loaded according to the ledger, whatever the program itself reported.

    `AttemptSuperseded` if newer attempts are at work on all that is missing: a retry would supersede them.
    """
    missing = [outcome for outcome in outcomes if not outcome.is_loaded]
    reasons = formatting.several([outcome.why for outcome in missing], NAMED_MAX, separator="; ")
    if all(outcome.is_taken_over for outcome in missing):
        return errors.AttemptSuperseded(
            f"another run is loading these windows: {reasons}. They load the same records: look at their run, and "
            "start this one again only if the window is to be loaded once more"
        )
    return errors.LoadFailed(
        f"not loaded, according to the ledger: {len(missing):,} of {formatting.many(len(outcomes), 'window')}: {reasons}"
    )


def outcomes_of(engine: sa.Engine, attempts: Sequence[model.Attempt], now: datetime) -> list[AttemptOutcome]:
    """The outcome of each of the attempts, in their order, by one query."""
    ours, newest, window = schema.attempt.alias("ours"), schema.attempt.alias("newest"), schema.window
    query = (
        sa.select(
            ours.c.window_id,
            ours.c.number,
            ours.c.state,
            ours.c.began_at,
            ours.c.heartbeat_at,
            ours.c.error,
            window.c.loaded_attempt,
            newest.c.number.label("newest"),
            newest.c.state.label("newest_state"),
            newest.c.run_id.label("newest_run_id"),
            newest.c.heartbeat_at.label("newest_heartbeat_at"),
        )
        .join(window, window.c.id == ours.c.window_id)
        .join(newest, (newest.c.window_id == window.c.id) & (newest.c.number == window.c.last_attempt))
        .where(among_attempts(attempts, ours))
    )
    with engine.connect() as connection:
        rows = {(row["window_id"], row["number"]): row for row in connection.execute(query).mappings()}
    outcomes = []
    for attempt in attempts:
        row = rows[attempt.window_id, attempt.number]
        same = ("state", "began_at", "heartbeat_at", "loaded_attempt", "newest", "newest_state", "newest_run_id", "error")
        newest_is_alive = row["newest_state"] == ATTEMPT_RUNNING and row["newest_heartbeat_at"] > now - HEARTBEAT_EXPIRY
        outcomes.append(AttemptOutcome(attempt=attempt, newest_is_alive=newest_is_alive, **{name: row[name] for name in same}))
    return outcomes


# Heartbeats: a driver reports every few seconds that its attempts are alive; after a long silence they are presumed dead.
#
# Correctness does not depend on them: the attempt's number is the fence. They distinguish (in `logbus doctor`) a slow load from
# one whose machine is gone. A beat that fails is not retried; the next one follows. Nor does silence end an attempt: a driver
# that was stopped, or whose warehouse was, beats again and commits, unless a newer attempt or `logbus doctor --clean` has come
# first.


HEARTBEAT_SECONDS = 20.0

STOP_SECONDS_MAX = 30.0  # a beat that hangs on a dead connection must not keep the program from ending


@contextmanager
def heartbeats(beat: Callable[[], None], every_seconds: float = HEARTBEAT_SECONDS) -> Iterator[None]:
    """Calls `beat` at once and then every `every_seconds`, on a thread of its own."""
    stopped = threading.Event()

    def run() -> None:
        while True:
            with suppress(SQLAlchemyError):
                beat()
            if stopped.wait(every_seconds):
                return

    thread = threading.Thread(target=run, name="logbus-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(STOP_SECONDS_MAX)


# Staging tables that no running attempt owns: left by drivers that died, or whose attempt was superseded.
#
# Most of them are in the ledger, as attempts that are not cleaned; others belong to windows that a restored ledger no longer
# contains. A table is named after its attempt (`w<window>_a<number>_<key>`), so nothing else in the schema is ever touched.


OURS = re.compile(r"w\d+_a\d+(_[0-9a-f]{16})?(_dead)?(_sealed)?")


def ownerless(engine: sa.Engine) -> list[str]:
    """The tables, by name. The tables are listed before the owners: an attempt begun in between is not among the tables yet."""
    row = schema.attempt
    owned = sa.select(row.c.staging_table).where(row.c.state == ATTEMPT_RUNNING)
    with engine.connect() as connection:
        listed = sa.text("select tablename from pg_tables where schemaname = :schema order by tablename")
        present = connection.execute(listed, {"schema": STAGING_SCHEMA}).scalars().all()
        running = {table.name for name in connection.execute(owned).scalars() for table in tables_of_attempt(name)}
    return [name for name in present if OURS.fullmatch(name) and name not in running]


def drop_ownerless(engine: sa.Engine) -> list[str]:
    """Drops them and returns those that are gone; a locked table stays."""
    row = schema.attempt
    over = sa.select(row.c.window_id).where(row.c.state.in_([FAILED, SUPERSEDED]), row.c.cleaned.is_(False)).distinct()
    before = ownerless(engine)
    with engine.connect() as connection:
        windows = connection.execute(over).scalars().all()
    drop_stale_tables(engine, windows)
    for name in ownerless(engine):
        with unless_locked(), engine.begin() as connection:
            drop_tables(connection, [name])
    left = set(ownerless(engine))
    return [name for name in before if name not in left]
