"""What never changes under a pipeline's name: which records its windows hold, and where its rows are stored.

The sink's location (a directory, a catalog) may be corrected while nothing is stored there; from the first attempt on it is where
the ledger looks for what is loaded.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from logbus.errors import PipelineConflict
from logbus.ledger import schema
from logbus.ledger.definition import differences, in_words, location_of
from logbus.ledger.rows import ATTEMPT_RUNNING
from logbus.model import Pipeline

FIXED = ("topic", "table", "interval", "starts_at", "isolation_level", "sink")


def refuse_fixed(registered: Pipeline, wanted: Pipeline) -> None:
    """Another table or sink has nothing of what the ledger shows as loaded, and other windows are other records."""
    wrong = [found for found in differences(registered, wanted) if found.option in FIXED]
    if wrong:
        raise PipelineConflict(
            f"pipeline {registered.name} is registered otherwise (registered against given): {in_words(wrong)}. That decides "
            "which records belong to which window and where its rows lie, and never changes under a name: give it as it is "
            f"registered (`logbus pipeline show {registered.name}`), or choose another name and another table for another "
            "pipeline; both may read the same topic"
        )


def refuse_moved(connection: Connection, registered: Pipeline, wanted: Pipeline) -> None:
    """Rows that are loaded, or being loaded, stay where they were written."""
    if location_of(registered) != location_of(wanted) and has_rows(connection, registered.name):
        refuse_elsewhere(registered, wanted)


def refuse_elsewhere(registered: Pipeline, wanted: Pipeline) -> None:
    before, after = location_of(registered), location_of(wanted)
    if before != after:
        raise PipelineConflict(
            f"pipeline {registered.name} loads into {place(before)}, and its rows lie there: it cannot go on in {place(after)}. "
            "Give the registered place (where the files themselves were moved, a link at the old place will do), or register "
            "another pipeline under another name for the new one"
        )


def place(location: dict[str, str]) -> str:
    return ", ".join(f"{option} {value}" for option, value in location.items()) or "no place at all"


def has_rows(connection: Connection, name: str) -> bool:
    """Whether a window is loaded, or an attempt is running that may still write rows to the location with which it began."""
    window, attempt = schema.window, schema.attempt
    mine = select(window.c.id).where(window.c.pipeline == name)
    loaded = mine.where(window.c.loaded_attempt.is_not(None))
    running = mine.join(attempt, attempt.c.window_id == window.c.id).where(attempt.c.state == ATTEMPT_RUNNING)
    return any(connection.execute(query.limit(1)).first() is not None for query in (loaded, running))
