"""Accepting the loss of an hour whose records are gone, or may be, before they were loaded: by name and with a reason.

The hour may then be loaded with the records that remain, and audited for those. Who accepted the loss, when and why is shown
forever, and no audit of such a window reports `exact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, update

from logbus.errors import UserError
from logbus.kafka.topics import OffsetLog
from logbus.ledger import freezing, schema
from logbus.ledger.giving_up import give_up
from logbus.ledger.rows import load_window, pipeline_row
from logbus.model import FrozenWindow, Interval, instant_text


def accept(
    engine: Engine, pipeline_name: str, interval: Interval, log: OffsetLog, now: datetime, *, by: str, reason: str
) -> FrozenWindow:
    """Freezes the interval if it is not frozen yet; `UserError` if none of its records is lost."""
    with engine.connect() as connection:
        window = freezing.find_window(connection, pipeline_name, interval)
        topic_id = pipeline_row(connection, pipeline_name)["topic_id"]
    if window is None:
        window = freezing.freeze_or_get(engine, pipeline_name, interval, log, now, accepts_loss=True)
    elif window.loaded_attempt is None and window.topic_id != topic_id:
        window = give_up_all(engine, window)
    elif window.loaded_attempt is None:
        window = give_up(engine, window, log, now)
    if not window.head_unknown:
        raise UserError(f"nothing of window {interval} of {pipeline_name} is lost: load it as any other")
    return note(engine, window, {"by": by, "at": instant_text(now), "reason": reason})


def give_up_all(engine: Engine, window: FrozenWindow) -> FrozenWindow:
    """Marks everything as lost: the window's log no longer exists, so nothing can be read."""
    part = schema.window_range
    with engine.begin() as connection:
        everything = {"lost": part.c.end_offset - part.c.start_offset}
        connection.execute(update(part).where(part.c.window_id == window.id).values(everything))
        connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))
        return load_window(connection, window.id)


def note(engine: Engine, window: FrozenWindow, acceptance: Mapping[str, Any]) -> FrozenWindow:
    """The first acceptance stays: it is the one under which the window was loaded."""
    row_of = schema.window
    with engine.begin() as connection:
        first = (row_of.c.id == window.id, row_of.c.loss_accepted.is_(None))
        connection.execute(update(row_of).where(*first).values(loss_accepted=dict(acceptance)))
        return load_window(connection, window.id)


def loss_text(acceptance: Mapping[str, Any]) -> str:
    """`by mary at 2026-11-22T10:00:00Z: the disk is gone`."""
    return f"by {acceptance['by']} at {acceptance['at']}: {acceptance['reason']}"
