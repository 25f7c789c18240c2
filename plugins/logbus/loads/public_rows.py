"""What is public of a window, in a table or as dead letters of any sink: counted, its checksums taken, and compared later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from logbus import fingerprint, model
from logbus.loads import checksum, tally
from logbus.loads.checksum import DEAD_LETTERS, WITHOUT_CHECKSUM, Published, ValuesReport
from logbus.windows.table_names import parse_table

# A window's public rows in its target, in whichever leaves; `window_parameters` returns the parameters.
ROWS_OF_WINDOW = "_window_start = :start and _topic = :topic"


def window_parameters(pipeline: model.Pipeline, window: model.FrozenWindow) -> dict[str, Any]:
    return {"start": window.interval.start, "topic": pipeline.topic}


def published(connection: Connection, window_id: int, staged: tally.Counted) -> Published:
    """The checksums of a window whose dead letters are already in the ledger; its rows are the sealed ones."""
    has_dead_letters = any(part.dead_lettered for part in staged.tallies.values())
    return Published(
        staged={partition: fingerprint.as_text(part.fingerprint) for partition, part in staged.tallies.items()},
        table=staged.table,
        files=staged.files,
        dead_letters=checksum.take_dead_letters(connection, window_id) if has_dead_letters else None,
    )


def count_window(
    connection: Connection, pipeline: model.Pipeline, window: model.FrozenWindow
) -> Mapping[int, model.PartitionTally]:
    """Counts the public rows in the pipeline's table and the dead letters of a window, by partition."""
    rows = tally.target_rows(parse_table(pipeline.table).sql, ROWS_OF_WINDOW)
    dead = tally.dead_letters(DEAD_LETTERS.sql, "window_id = :window_id")
    parameters = {**window_parameters(pipeline, window), "window_id": window.id}
    return tally.count(connection, rows, dead, parameters).tallies


def of_window(window: model.FrozenWindow) -> Published | None:
    """The checksums that its load stored; None if no attempt has loaded it."""
    return None if window.values_hash is None else Published.from_json(window.values_hash)


def compare_table(connection: Connection, pipeline: model.Pipeline, window: model.FrozenWindow) -> ValuesReport:
    """Compares the rows of a window in the pipeline's table."""
    then = of_window(window)
    if then is None:
        return ValuesReport()
    if then.table is None:
        return WITHOUT_CHECKSUM
    return checksum.compare(
        connection, "rows", then.table, parse_table(pipeline.table), ROWS_OF_WINDOW, window_parameters(pipeline, window)
    )


def compare_dead_letters(connection: Connection, window: model.FrozenWindow) -> ValuesReport:
    """Compares the dead letters, if there were any. If there are more or fewer of them, the audit's counts show it."""
    then = of_window(window)
    if then is None or then.dead_letters is None:
        return ValuesReport()
    parameters: Mapping[str, Any] = {"window_id": window.id}
    return checksum.compare(
        connection, "dead letters", then.dead_letters, DEAD_LETTERS, "window_id = :window_id", parameters, "partition"
    )
