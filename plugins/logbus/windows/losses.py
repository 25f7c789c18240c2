"""A window whose records were deleted before they were loaded: refused, unless somebody accepts the loss, with a reason.

The window's boundaries stay what they are, and what is gone is stored in its ranges. It may then be loaded with the records that
remain, and audited for those; who accepted the loss, when and why is shown forever, and no audit of it reports `exact`.
`logbus.windows.recovery.accept_loss` is the way in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, select, update

from logbus import errors, model
from logbus.kafka.topics import OffsetLog
from logbus.windows import log_changes, rows, schema


def loadable(engine: Engine, window: model.FrozenWindow, log: OffsetLog, now: datetime) -> model.FrozenWindow:
    """The frozen window, without its lost records if the loss is accepted; otherwise `RecordsLost`."""
    if window.loss_accepted is not None and not window.record_count:
        return window
    try:
        log_changes.refuse_if_cut(window, log)
    except errors.RecordsLost:
        if window.loss_accepted is None:
            raise
        return give_up(engine, window, log, now)
    return window


def give_up(engine: Engine, window: model.FrozenWindow, log: OffsetLog, now: datetime) -> model.FrozenWindow:
    """Records as lost what the log no longer holds, unless the window has been loaded by now or an attempt is loading it."""
    starts = log.start_offsets(window.topic, [part.partition for part in window.ranges])
    with engine.begin() as connection:
        [row] = rows.lock_windows(connection, window.pipeline, [window.interval.start])
        alive = select(schema.attempt.c.number).where(schema.attempt.c.window_id == window.id, rows.is_alive(now))
        if row["loaded_attempt"] is None and connection.execute(alive).first() is None:
            _store_losses(connection, window, starts)
        return rows.load_window(connection, window.id)


def _store_losses(connection: Connection, window: model.FrozenWindow, starts: Mapping[int, int]) -> None:
    part_of = schema.window_range
    for part in window.ranges:
        # The offsets at the head of the range that the log does not hold; never fewer than were lost before.
        lost = max(part.lost, min(starts[part.partition], part.end_offset) - part.start_offset)
        of_partition = (part_of.c.window_id == window.id, part_of.c.partition == part.partition)
        connection.execute(update(part_of).where(*of_partition).values(lost=lost))
    connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))


def give_up_all(engine: Engine, window: model.FrozenWindow) -> model.FrozenWindow:
    """Marks everything as lost: the window's log no longer exists, so nothing can be read."""
    part = schema.window_range
    with engine.begin() as connection:
        everything = {"lost": part.c.end_offset - part.c.start_offset}
        connection.execute(update(part).where(part.c.window_id == window.id).values(everything))
        connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))
        return rows.load_window(connection, window.id)


def store_acceptance(engine: Engine, window: model.FrozenWindow, acceptance: Mapping[str, Any]) -> model.FrozenWindow:
    """The first acceptance stays: it is the one under which the window was loaded."""
    row_of = schema.window
    with engine.begin() as connection:
        first = (row_of.c.id == window.id, row_of.c.loss_accepted.is_(None))
        connection.execute(update(row_of).where(*first).values(loss_accepted=dict(acceptance)))
        return rows.load_window(connection, window.id)


def loss_text(acceptance: Mapping[str, Any]) -> str:
    """`by mary at 2026-11-22T10:00:00Z: the disk is gone`."""
    return f"by {acceptance['by']} at {acceptance['at']}: {acceptance['reason']}"
