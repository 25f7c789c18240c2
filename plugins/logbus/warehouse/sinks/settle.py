"""When a table of files and the ledger differ: the table is right, and the ledger is brought up to date.

They differ if a driver dies between the table's commit and the ledger's. The rows are then public, all of them; only the
ledger does not show it. The next attempt at the window checks for this before it begins.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text, update

from logbus.errors import UserError
from logbus.ledger import schema, stamped_hours
from logbus.ledger.attempts import COMMITTED
from logbus.ledger.rows import Row, count_values
from logbus.model import Attempt, utc
from logbus.warehouse.sinks.entry import LedgerEntry


def settle_window(engine: Engine, attempt: Attempt, entry: LedgerEntry | None) -> LedgerEntry | None:
    """Updates the window in the ledger from the table's entry, before `attempt` continues. Usually there is nothing to do.

    Returns the table's entry if the ledger cannot take it over: its dead letters are gone, or it is of an attempt that this
    ledger never began, because the ledger was restored from a backup since.
    """
    if entry is None:
        return None
    with engine.begin() as connection:
        window = schema.window
        query = select(window).where(window.c.id == attempt.window_id).with_for_update()
        row = connection.execute(query).mappings().one()
        if entry.attempt > row["last_attempt"]:  # if only newer than `attempt`, ours is just superseded
            raise UserError(
                f"the table holds window {attempt.interval} of {attempt.pipeline} as attempt {entry.attempt} loaded it, "
                f"but the ledger knows of {row['last_attempt']} attempts: it was lost, or it is another one. "
                f"`logbus ledger rebuild --pipeline {attempt.pipeline}` makes it again from the table"
            )
        if row["loaded_attempt"] == entry.attempt or row["last_attempt"] > attempt.number:
            return None  # a newer attempt settles on its own: it may have replaced this entry since we read it
        if begun_here(connection, attempt.window_id, entry) and dead_letters_kept(connection, attempt.window_id, entry):
            write_entry(connection, row, entry)
            return None
        return entry


def begun_here(connection: Connection, window_id: int, entry: LedgerEntry) -> bool:
    """Whether the entry is of the attempt with its number in this ledger. Older entries have no key to compare."""
    row_of = schema.attempt
    mine = (row_of.c.window_id == window_id, row_of.c.number == entry.attempt)
    found = connection.execute(select(row_of.c.key).where(*mine)).one_or_none()
    return found is not None and entry.key in (None, found.key)


def dead_letters_kept(connection: Connection, window_id: int, entry: LedgerEntry) -> bool:
    """A load is incomplete without its dead letters. Those of a crashed attempt are lost with it, so it must be done again."""
    dead = schema.dead_letter
    mine = (dead.c.window_id == window_id, dead.c.attempt == entry.attempt)
    kept: int = connection.execute(select(func.count()).select_from(dead).where(*mine)).scalar_one()
    return kept == entry.counts.dead_lettered


def write_entry(connection: Connection, row: Row, entry: LedgerEntry) -> None:
    """Stores the window as loaded, with what the entry holds."""
    window, attempt, part = schema.window, schema.attempt, schema.window_range
    counted = {**count_values(entry.counts), "fingerprint": entry.fingerprint}
    public = {"loaded_attempt": entry.attempt, "loaded_at": entry.loaded_at, "audited_at": None, "audit_problems": None}
    kept: dict[str, Any] = {"values_hash": entry.values and entry.values.to_json()}
    kept |= {"other_records": list(entry.other_records)} if entry.other_records else {}
    kept |= stamped_hours.write(connection, row["id"], entry.hours)
    connection.execute(update(window).where(window.c.id == row["id"]).values(**counted, **public, **kept))
    for partition, span in entry.spans.items():
        mine = (part.c.window_id == row["id"], part.c.partition == partition)
        connection.execute(update(part).where(*mine).values(first_timestamp=span.first, last_timestamp=span.last))
    loaded = (attempt.c.window_id == row["id"], attempt.c.number == entry.attempt)
    ended = {"state": COMMITTED, "ended_at": entry.loaded_at, "partitions": dict(entry.partitions), "key": entry.key}
    connection.execute(update(attempt).where(*loaded).values(**counted, **ended))
    stale = text("delete from logbus.dead_letter where window_id = :id and attempt <> :attempt")
    connection.execute(stale, {"id": row["id"], "attempt": entry.attempt})


def committed_attempts(engine: Engine, window_id: int) -> set[int]:
    attempt = schema.attempt
    query = select(attempt.c.number).where(attempt.c.window_id == window_id, attempt.c.state == COMMITTED)
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def attempts_in(engine: Engine, pipeline_name: str, *states: str) -> set[tuple[datetime, int]]:
    """Window starts and numbers of a pipeline's attempts in one of these states."""
    attempt, window = schema.attempt, schema.window
    query = (
        select(window.c.starts_at, attempt.c.number)
        .join(window, window.c.id == attempt.c.window_id)
        .where(window.c.pipeline == pipeline_name, attempt.c.state.in_(states))
    )
    with engine.connect() as connection:
        return {(utc(row.starts_at), row.number) for row in connection.execute(query)}
