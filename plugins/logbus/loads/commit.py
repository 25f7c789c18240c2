"""The commit of one window: one transaction in which its rows, dead letters, counts and offsets become public, or none of them.

In order: the fence (the window's row is held, the attempt must be its newest), all that may refuse (commit_checks.py: the
equation, the same records as before where the window is loaded, the error budget), the dead letters, the rows, the ledger. A
first load attaches the sealed table as a leaf. A reload deletes and inserts inside the leaf, which blocks no reader; a large one
takes the leaf's place if no reader holds the target right now, so that a commit takes no longer than a first load's.

A commit has three outcomes. Committed and refused are known. When the connection dies nobody was told: then the
ledger is asked, under the window's lock, which waits for a transaction that may still be on its way. Nothing is
deleted before that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from logbus import errors, fingerprint, model, waiting
from logbus.loads import commit_checks, read_tally, tally, target
from logbus.loads.attempts import lock_if_current
from logbus.loads.commit_checks import LoadedRecords, SealedWindow, other_records, refuse_errors, refuse_mismatch
from logbus.loads.tally import DEAD_LETTERS, Checksum, Published
from logbus.windows import handover, rows, schema, sql_errors
from logbus.windows.table_names import SCHEMA, WINDOW_COLUMNS, TableName, leaf_name, quoted

# The columns of a dead letter that its task has written.
STAGED = ", ".join(quoted(column.name) for column in schema.dead_letter.columns if column.name != "run_id")

# ATTACH waits for whoever alters the parent; nobody does for long.
COMMIT_LOCK_TIMEOUT_MS = 60_000

# A server that crashed is there again in seconds, or in minutes where its disk or its memory is short.
RECOVERY_SECONDS_MAX = waiting.PATIENCE_SECONDS
RECOVERY_PAUSE_SECONDS = 0.25

# From here on a leaf is swapped: delete and insert take 3.5 us a row, and a commit should take less than a second.
SWAPPED_ROWS_MIN = 50_000
SWAP_TRIES = 3
SWAP_LOCK_TIMEOUT_MS = 200  # queries that arrive while we wait for a reader queue up after us

# The leaf of an hour that was loaded a minute ago is what autovacuum works on. It gives way to a lock, but only to one that has
# waited for deadlock_timeout, a second by default: a shorter patience would never see it go. No reader waits for this lock.
# The sink asks for one already while the new rows are sealed (sinks/postgres.py).
LEAF_LOCK_TIMEOUT_MS = 3_000


def connection_died(error: DBAPIError) -> bool:
    state = sql_errors.sqlstate_of(error)
    # Three signs of one thing: the pool saw it, the driver has no answer at all, or the server had time to say that it goes.
    # Any other SQLSTATE is an answer: the transaction was rolled back, and that is known.
    return error.connection_invalidated or state is None or state.startswith(sql_errors.SERVER_WENT_AWAY)


def resolve_unknown(engine: Engine, load: SealedWindow, error: DBAPIError) -> model.WindowCounts:
    """Nobody said whether the commit took place: the ledger knows, as soon as the server answers again."""
    what = f"the warehouse after its connection died in the commit of window {load.attempt.interval}"
    try:
        (counts,) = waiting.wait_until(
            lambda: (committed_counts(engine, load.attempt),),
            what=what,
            timeout_seconds=RECOVERY_SECONDS_MAX,
            poll_seconds=RECOVERY_PAUSE_SECONDS,
            not_yet=(OperationalError, InterfaceError),
            remedy="its ledger knows whether it was (`logbus window show`); load it again",
            say=waiting.logged,
        )
    except errors.NotInTime as late:
        raise errors.LoadFailed(str(late)) from error
    if counts is None:
        raise errors.LoadFailed(
            f"the connection died while window {load.attempt.interval} was committed, and it was not: {error.orig}"
        ) from error
    return counts


def committed_counts(engine: Engine, attempt: model.Attempt) -> model.WindowCounts | None:
    """The counts of an attempt that is committed, None otherwise. Waits for a commit that is still on its way."""
    # Holding the window's row is what makes the answer final. A commit whose connection died may still be running in the server,
    # and holds this row: we wait until it is over. After that it cannot succeed unseen any more.
    row_of = schema.attempt
    with engine.begin() as connection:
        row = (
            connection.execute(select(schema.window).where(schema.window.c.id == attempt.window_id).with_for_update())
            .mappings()
            .one()
        )
        is_attempt = (row_of.c.window_id == attempt.window_id, row_of.c.number == attempt.number)
        state = connection.execute(select(row_of.c.state).where(*is_attempt, row_of.c.key == attempt.key)).scalar_one_or_none()
    return rows.to_counts(row) if state == rows.COMMITTED else None


# Gives the checksum of what is public then, where that may be another than the sealed rows'.
PutRows = Callable[[Connection, SealedWindow], Checksum | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a commit puts into the ledger. `other_records`: only where it replaces records by others."""

    counts: model.WindowCounts
    values: Published
    other_records: Sequence[Mapping[str, Any]] | None = None


def commit_in(
    connection: Connection, load: SealedWindow, now: datetime, put_rows: PutRows, published_before: LoadedRecords | None = None
) -> Commit:
    """Everything of a commit but the transaction's end; `put_rows` is what the kinds of sinks differ in. `published_before`: what
    the target holds by its own word, of which the ledger may not know."""
    connection.execute(text(f"set local lock_timeout = {COMMIT_LOCK_TIMEOUT_MS}"))
    # The fence comes first and is held to the end: a newer attempt cannot begin between this look and the commit, because it
    # takes the same row. So a driver that outlived its task fails here, however late it wakes up.
    lock_if_current(connection, load.attempt)
    # Then all that may refuse, while nothing is changed yet; what costs least first.
    refuse_mismatch(load)
    others = other_records(connection, load.attempt, load.records, now, published_before)
    refuse_errors(connection, load)
    # From here on the window changes. Readers need not wait for the dead letters; for the rows they may have to.
    connection.execute(text(f"delete from {DEAD_LETTERS.sql} where window_id = :id"), {"id": load.window.id})
    run_id = f"select run_id from {SCHEMA}.{schema.attempt.name} where window_id = :id and number = :number"
    connection.execute(
        text(f"insert into {DEAD_LETTERS.sql} ({STAGED}, run_id) select {STAGED}, ({run_id}) from {load.dead.sql}"),
        {"id": load.window.id, "number": load.attempt.number},
    )
    connection.execute(text(f"drop table {load.dead.sql}"))
    dead_letters = tally.checksum_of_dead_letters(connection, load.window.id) if load.counts.dead_lettered else None
    staged = {partition: fingerprint.as_text(part.fingerprint) for partition, part in load.staged.tallies.items()}
    table = put_rows(connection, load)  # last: from here on it may hold locks that readers want
    values = Published(staged=staged, table=table or load.staged.table, files=load.staged.files, dead_letters=dead_letters)
    done = Commit(counts=load.counts, values=values, other_records=others)
    write_ledger(connection, load, done, now)
    return done


def replace_rows(connection: Connection, load: SealedWindow) -> Checksum | None:
    """The sealed rows become the window's rows in the target. Gives the checksum of what was inserted row by row: a trigger of
    the user's own may have changed it on its way."""
    # Columns that the target got after the attempt's tables were made.
    target.follow_columns(connection, load.rows, load.target)
    if target.has_leaves(connection, load.target):
        leaf = leaf_name(load.target, load.attempt.interval.start)
        if not target.relation_exists(connection, leaf) and attach(connection, load, leaf):
            return None
        if may_swap(connection, load, leaf) and swap(connection, load, leaf):
            return None
    replace(connection, load)
    # Attached or swapped, the public table is the sealed one, whose checksum is known. Inserted row by row it has gone through
    # the target's own triggers and casts, so it is taken again from what is there now.
    table, parameters = load.staged.table, target.window_parameters(load.window)
    return table and tally.checksum_of(connection, load.target, table.columns, target.ROWS_OF_WINDOW, parameters)


def attach(connection: Connection, load: SealedWindow, leaf: TableName) -> bool:
    """False where a larger leaf covers the window already (closed days are merged into one), or where the user's default
    partition holds rows of the hour, whichever pipeline's or whoever's they are."""
    start, end = model.instant_text(load.attempt.interval.start), model.instant_text(load.attempt.interval.end)
    moved = TableName(name=load.rows.name, schema=leaf.schema)
    try:
        with connection.begin_nested():
            connection.execute(text(f"alter table {load.rows.sql} set schema {quoted(leaf.schema)}"))
            connection.execute(text(f"alter table {moved.sql} rename to {quoted(leaf.name)}"))
            constants = ", ".join(f"alter {name} drop default" for name in WINDOW_COLUMNS)
            connection.execute(text(f"alter table {leaf.sql} reset (autovacuum_enabled), {constants}"))
            connection.execute(
                text(f"alter table {load.target.sql} attach partition {leaf.sql} for values from ('{start}') to ('{end}')")
            )
            connection.execute(text(f"alter table {leaf.sql} drop constraint {target.LEAF_CHECK}"))
    except (ProgrammingError, IntegrityError) as error:
        if sql_errors.sqlstate_of(error) in (sql_errors.OVERLAPPING_PARTITION, sql_errors.CHECK_VIOLATION):
            return False
        raise
    return True


def may_swap(connection: Connection, load: SealedWindow, leaf: TableName) -> bool:
    """Whether the window has a leaf of its own that is large. Not with indexes: they would be built while readers wait."""
    loaded = load.window.counts.loaded if load.window.counts else 0
    if max(loaded, sum(part.loaded for part in load.staged.tallies.values())) < SWAPPED_ROWS_MIN:
        return False
    has_index = text("select relhasindex from pg_class where oid = to_regclass(:name)")
    return target.parent_of(connection, leaf) == load.target and not connection.scalar(
        has_index, {"name": load.target.identifier}
    )


def swap(connection: Connection, load: SealedWindow, leaf: TableName) -> bool:
    """Puts the sealed table into the leaf's place. False where somebody reads the target: nobody is kept waiting for that; and
    where the leaf holds rows that are not of our topic, which would go with it."""
    for _ in range(SWAP_TRIES):
        try:
            with connection.begin_nested():
                connection.execute(text(f"set local lock_timeout = {LEAF_LOCK_TIMEOUT_MS}"))
                connection.execute(text(f"lock table {leaf.sql} in share row exclusive mode"))  # no one else writes to it now
                connection.execute(text(f"set local lock_timeout = {SWAP_LOCK_TIMEOUT_MS}"))
                if holds_rows_out_of_window(connection, load, leaf):
                    connection.execute(text(f"set local lock_timeout = {COMMIT_LOCK_TIMEOUT_MS}"))
                    return False
                connection.execute(text(f"alter table {load.target.sql} detach partition {leaf.sql}"))
                connection.execute(text(f"drop table {leaf.sql}"))
                if not attach(connection, load, leaf):
                    raise errors.LoadFailed(f"{leaf} was taken out of {load.target} and something else lies in its place")
                connection.execute(text(f"set local lock_timeout = {COMMIT_LOCK_TIMEOUT_MS}"))
        except OperationalError as error:
            if sql_errors.sqlstate_of(error) != sql_errors.LOCK_NOT_AVAILABLE:
                raise
        else:
            return True
    return False


def holds_rows_out_of_window(connection: Connection, load: SealedWindow, leaf: TableName) -> bool:
    """Whether rows of another topic lie in the leaf: of another pipeline that shared the table once, or put there by hand."""
    other = text(f"select exists(select from {leaf.sql} where _topic is distinct from :topic)")
    return bool(connection.scalar(other, {"topic": load.pipeline.topic}))


def replace(connection: Connection, load: SealedWindow) -> None:
    """Delete and insert: the predicate on `_window_start` keeps both inside one leaf."""
    columns = ", ".join(quoted(name) for name in target.table_columns(connection, load.target))
    parameters = target.window_parameters(load.window)
    connection.execute(text(f"delete from {load.target.sql} where {target.ROWS_OF_WINDOW}"), parameters)
    with target.finding_partitions(connection, load.target, load.attempt.interval):
        connection.execute(text(f"insert into {load.target.sql} ({columns}) select {columns} from {load.rows.sql}"))
    connection.execute(text(f"drop table {load.rows.sql}"))


def write_ledger(connection: Connection, load: SealedWindow, done: Commit, now: datetime) -> None:
    window, part, attempt = schema.window, schema.window_range, schema.attempt
    loaded = {**rows.count_values(done.counts), "fingerprint": load.records.fingerprint}
    public = {"loaded_attempt": load.attempt.number, "loaded_at": now, "audited_at": None, "audit_problems": None}
    stamped = write_hours(connection, load.window.id, load.read.hours)
    others = {} if done.other_records is None else {"other_records": list(done.other_records)}
    values = {**loaded, **public, **stamped, "values_hash": asdict(done.values), **others}
    connection.execute(update(window).where(window.c.id == load.window.id).values(values))
    for partition, span in load.staged.spans.items():
        is_range = (part.c.window_id == load.window.id, part.c.partition == partition)
        connection.execute(update(part).where(*is_range).values(first_timestamp=span.first, last_timestamp=span.last))
    ended: dict[str, Any] = {"state": rows.COMMITTED, "ended_at": now, "cleaned": True, "partitions": load.records.partitions}
    # Which numbers of which producers arrived; how many streams there are.
    arrived = schema.producer_count
    connection.execute(delete(arrived).where(arrived.c.window_id == load.window.id))
    sent = [
        {
            "window_id": load.window.id,
            "attempt": load.attempt.number,
            "stream": stream,
            "record_count": numbers.count,
            "first_number": numbers.runs[0][0],
            "last_number": numbers.runs[-1][1],
            "runs": None if numbers.is_vague else [list(run) for run in numbers.runs],
        }
        for stream, numbers in load.read.sent.items()
        if numbers.runs
    ]
    if sent:
        connection.execute(insert(arrived), sent)
    ended["streams"] = len(load.read.sent)
    commit_checks.freeze_used_schemas(connection, load, now)
    committed = (attempt.c.window_id == load.window.id, attempt.c.number == load.attempt.number)
    connection.execute(update(attempt).where(*committed).values(**loaded, **ended))
    connection.execute(handover.NOTIFY, {"name": load.window.pipeline})


def write_hours(connection: Connection, window_id: int, histogram: Mapping[int, int]) -> dict[str, int]:
    """Replaces the window's histogram, in the transaction that makes its records public.

    Returns what belongs in the window's row, for its single update: a second update in the same transaction would make
    PostgreSQL check the row's foreign key again, and lock the pipeline's row against every freeze.
    """
    hours = schema.window_hour
    connection.execute(delete(hours).where(hours.c.window_id == window_id))
    rows = [
        {"window_id": window_id, "hour": model.instant(hour), "record_count": count}
        for hour, count in histogram.items()
        if hour >= 0
    ]
    if rows:
        connection.execute(insert(hours), rows)
    return {"unstamped_count": histogram.get(read_tally.NO_HOUR, 0), "far_count": histogram.get(read_tally.FAR_HOURS, 0)}
