"""A lost ledger, rebuilt from the table: every commit of an Iceberg table carries its ledger entry.

The pipeline is first registered again (its DAG does that, or `logbus pipeline register`). Then each entry becomes a window
with its boundaries, ranges, counts and attempt. What is already in the ledger stays; where it differs (it has frozen other
offsets since), nothing is changed and the window is reported. Audits must be done again. Dead letters were only in the
ledger's database: windows that had some are reported too, because loading them again restores those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sqlalchemy import Connection, Engine, insert, select, update

from logbus import errors, model
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for, snapshot_entry
from logbus.windows import freezing, rows, schema, table_names
from logbus.windows.chain import Chain

# Stored in an attempt instead of its Airflow run, which is no longer known.
REBUILT = "rebuilt from the table"


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """What became of the windows that the table holds."""

    rebuilt: list[model.Interval] = field(default_factory=list)
    unchanged: list[model.Interval] = field(default_factory=list)
    without_dead_letters: list[model.Interval] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@runtime_checkable
class TableWithEntries(Protocol):
    """A sink whose table carries the ledger's entries: Iceberg's, whose libraries are not imported for this."""

    def entries(self) -> Iterator[snapshot_entry.LedgerEntry]: ...


class Conflict(Exception):
    """The ledger has frozen other offsets since."""


def rebuild(engine: Engine, pipeline_name: str) -> Rebuilt:
    """Rebuilds the ledger's windows of a pipeline, in one transaction per window, so it can be run again at any time."""
    sink = sink_for(Ledger(engine).pipeline(pipeline_name), engine)
    if not isinstance(sink, TableWithEntries):
        raise errors.UserError(
            f"pipeline {pipeline_name} loads into PostgreSQL, where rows and ledger are one database: restore that"
        )
    done = Rebuilt()
    for entry in sink.entries():
        try:
            with engine.begin() as connection:
                rebuild_window(connection, pipeline_name, entry, done)
        except (Conflict, errors.WindowOverlap) as error:
            done.refused.append(str(error))
    return done


def rebuild_window(connection: Connection, pipeline_name: str, entry: snapshot_entry.LedgerEntry, done: Rebuilt) -> None:
    rows.pipeline_row(connection, pipeline_name, lock=True)
    window = freezing.find_window(connection, pipeline_name, entry.interval)
    if window is not None:
        refuse_other_offsets(entry.interval, window.ranges, entry.ranges)
    if window is not None and is_known(connection, window, entry):
        done.unchanged.append(entry.interval)
        return
    window_id = insert_window(connection, pipeline_name, entry) if window is None else window.id
    insert_attempt(connection, window_id, entry)
    snapshot_entry.write_entry(connection, {"id": window_id}, entry)
    done.rebuilt.append(entry.interval)
    if not snapshot_entry.dead_letters_kept(connection, window_id, entry):
        done.without_dead_letters.append(entry.interval)


def is_known(connection: Connection, window: model.FrozenWindow, entry: snapshot_entry.LedgerEntry) -> bool:
    """Whether the ledger already has this load of the window, or a later one."""
    if window.loaded_attempt is None or window.loaded_attempt < entry.attempt:
        return False
    return window.loaded_attempt > entry.attempt or snapshot_entry.is_of_this_ledger(connection, window.id, entry)


def refuse_other_offsets(
    interval: model.Interval, frozen: tuple[model.OffsetRange, ...], published: tuple[model.OffsetRange, ...]
) -> None:
    if sorted(frozen, key=lambda part: part.partition) != sorted(published, key=lambda part: part.partition):
        raise Conflict(
            f"{interval}: the ledger has frozen {', '.join(map(str, frozen))}, the table holds {', '.join(map(str, published))}: "
            "load the window again, which replaces what the table holds"
        )


def insert_window(connection: Connection, pipeline_name: str, entry: snapshot_entry.LedgerEntry) -> int:
    chain = Chain(connection, pipeline_name, entry.topic_id)
    for part in entry.ranges:
        lower_anchor(connection, chain, part, entry)
        freeze_boundaries(chain, part, entry)
    window, part_of = schema.window, schema.window_range
    values = {
        "pipeline": pipeline_name,
        "topic_id": entry.topic_id,
        "starts_at": entry.interval.start,
        "ends_at": entry.interval.end,
        "head_unknown": entry.head_unknown,
        "frozen_at": entry.loaded_at,
    }
    window_id: int = connection.execute(insert(window).values(values).returning(window.c.id)).scalar_one()
    if entry.ranges:
        connection.execute(insert(part_of), [freezing.range_values(window_id, part) for part in entry.ranges])
    return window_id


def lower_anchor(connection: Connection, chain: Chain, part: model.OffsetRange, entry: snapshot_entry.LedgerEntry) -> None:
    """Registering again anchored the chain where the log begins today; the table's windows begin earlier."""
    chain.anchor(None, [(part.partition, part.start_offset)], entry.loaded_at)
    anchor = schema.anchor
    is_anchor = (
        anchor.c.pipeline == chain.pipeline_name,
        anchor.c.topic_id == chain.topic_id,
        anchor.c.partition == part.partition,
    )
    connection.execute(update(anchor).where(*is_anchor, anchor.c.offset > part.start_offset).values(offset=part.start_offset))


def freeze_boundaries(chain: Chain, part: model.OffsetRange, entry: snapshot_entry.LedgerEntry) -> None:
    for at, offset in ((entry.interval.start, part.start_offset), (entry.interval.end, part.end_offset)):
        frozen, around = chain.boundary(part.partition, at), chain.neighbours(part.partition, at)
        fits = around.lower <= offset and (around.upper is None or offset <= around.upper)
        if frozen not in (None, offset) or not fits:
            raise Conflict(
                f"{entry.interval}: {part.topic}-{part.partition} begins or ends at {offset} in the table, which does not fit "
                f"between the boundaries that the ledger has frozen since: load the hours around it again"
            )
        if frozen is None:
            chain.freeze(part.partition, at, offset, None, entry.loaded_at)


def insert_attempt(connection: Connection, window_id: int, entry: snapshot_entry.LedgerEntry) -> None:
    window, attempt = schema.window, schema.attempt
    row: rows.Row = connection.execute(select(window).where(window.c.id == window_id).with_for_update()).mappings().one()
    is_attempt = (attempt.c.window_id == window_id, attempt.c.number == entry.attempt)
    if connection.execute(select(attempt.c.number).where(*is_attempt)).scalar_one_or_none() is None:
        tables = table_names.tables_of_attempt(f"w{window_id}_a{entry.attempt}")
        values = {
            "window_id": window_id,
            "number": entry.attempt,
            "state": rows.COMMITTED,
            "run_id": REBUILT,
            "try_number": 1,
            "staging_table": tables.rows.name,
            "dead_letter_table": tables.dead_letters.name,
            "cleaned": True,
            "began_at": entry.loaded_at,
            "heartbeat_at": entry.loaded_at,
            "key": entry.key,
        }
        connection.execute(insert(attempt).values(values))
    newest = max(row["last_attempt"], entry.attempt)
    connection.execute(update(window).where(window.c.id == window_id).values(last_attempt=newest))
