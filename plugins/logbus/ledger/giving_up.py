"""A frozen window whose records retention deleted before they were loaded: refused, or given up if the pipeline sets accept_loss.

The setting `{"accept_loss": true}` makes a pipeline give up records that were deleted before they were loaded. The window's
boundaries stay what they are. The loss is known exactly, since they were frozen before; it is stored in the window's ranges, and
the window can never be audited again. Nothing is given up while an attempt is alive: it may have read the records before they
were deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, Engine, select, update

from logbus.errors import RecordsLost
from logbus.kafka.topics import OffsetLog
from logbus.ledger import schema
from logbus.ledger.attempts import is_alive, lock_windows
from logbus.ledger.retained import refuse_if_cut
from logbus.ledger.rows import load_window
from logbus.model import FrozenWindow, OffsetRange, Pipeline


def loadable(engine: Engine, pipeline: Pipeline, window: FrozenWindow, log: OffsetLog, now: datetime) -> FrozenWindow:
    """The frozen window, without its lost records if the loss is accepted; otherwise `RecordsLost`."""
    if window.loss_accepted is not None and not window.record_count:
        return window
    try:
        refuse_if_cut(window, log)
    except RecordsLost:
        if not pipeline.options.accept_loss and window.loss_accepted is None:
            raise
        return give_up(engine, window, log, now)
    return window


def give_up(engine: Engine, window: FrozenWindow, log: OffsetLog, now: datetime) -> FrozenWindow:
    """Records as lost what the log no longer holds, unless the window has been loaded by now or an attempt is loading it."""
    starts = log.start_offsets(window.topic, [part.partition for part in window.ranges])
    with engine.begin() as connection:
        [row] = lock_windows(connection, window.pipeline, [window.interval.start])
        if row["loaded_attempt"] is None and not is_being_loaded(connection, window.id, now):
            note_losses(connection, window, starts)
        return load_window(connection, window.id)


def is_being_loaded(connection: Connection, window_id: int, now: datetime) -> bool:
    """Whether an attempt is running that has sent a heartbeat recently."""
    attempt = schema.attempt
    query = select(attempt.c.number).where(attempt.c.window_id == window_id, is_alive(now))
    return connection.execute(query).first() is not None


def note_losses(connection: Connection, window: FrozenWindow, starts: Mapping[int, int]) -> None:
    part_of = schema.window_range
    for part in window.ranges:
        mine = (part_of.c.window_id == window.id, part_of.c.partition == part.partition)
        connection.execute(update(part_of).where(*mine).values(lost=lost_of(part, starts[part.partition])))
    connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))


def lost_of(part: OffsetRange, log_start: int) -> int:
    """How many offsets at the head of the range the log does not hold; never fewer than were lost before."""
    return max(part.lost, min(log_start, part.end_offset) - part.start_offset)
