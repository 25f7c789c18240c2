"""A reload must bring the same records: what a window was loaded from is compared with what is about to replace it.

Offsets alone do not prove that. Compaction, a log restored from a backup or the election of a lagging replica put other records,
or fewer, under the same offsets; a reload would overwrite the warehouse's only copy of the original ones. So a loaded window
keeps its rows unless the fingerprint is the same. A run can be told to accept other records nevertheless; that it did is recorded
in the ledger forever (`window.other_records`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from logbus import errors, model
from logbus.fingerprint import as_text
from logbus.formatting import many
from logbus.windows import schema


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecords:
    """A load of a window, public or about to be. `partitions` as the ledger stores them for each attempt."""

    attempt: int
    fingerprint: str | None
    read: int
    partitions: Mapping[str, Mapping[str, Any]]


def other_records(
    connection: Connection, attempt: model.Attempt, load: LoadedRecords, now: datetime, published: LoadedRecords | None = None
) -> list[Mapping[str, Any]] | None:
    """What the window's row keeps forever about reloads that replaced its records by others; None if this is not one. Called
    under the window's lock. `published`: what the target's own metadata lists as loaded, if the ledger has no load.

    Raises `OtherRecords` unless the attempt accepts other records.
    """
    window, row_of = schema.window, schema.attempt
    query = (
        select(window.c.loaded_attempt, window.c.fingerprint, window.c.read_count, window.c.other_records)
        .add_columns(row_of.c.run_id, row_of.c.accepts_other_records)
        .join(row_of, row_of.c.window_id == window.c.id)
        .where(row_of.c.window_id == attempt.window_id, row_of.c.number == attempt.number)
    )
    row = connection.execute(query).one()
    former = published if row.loaded_attempt is None else ledgers(connection, attempt.window_id, row)
    if former is None or former.fingerprint in (None, load.fingerprint):
        return None
    if not row.accepts_other_records:
        raise errors.OtherRecords(refusal(attempt, former, load))
    note = {
        "attempt": load.attempt,
        "run_id": row.run_id,
        "at": model.instant_text(now),
        "attempt_before": former.attempt,
        "fingerprint_before": former.fingerprint,
        "fingerprint_after": load.fingerprint,
        "read_before": former.read,
        "read_after": load.read,
    }
    return [*(row.other_records or ()), note]


def ledgers(connection: Connection, window_id: int, row: Any) -> LoadedRecords:
    """The load that is public according to the ledger."""
    row_of = schema.attempt
    loaded = (row_of.c.window_id == window_id, row_of.c.number == row.loaded_attempt)
    partitions = connection.execute(select(row_of.c.partitions).where(*loaded)).scalar_one_or_none()
    return LoadedRecords(
        attempt=row.loaded_attempt, fingerprint=row.fingerprint, read=row.read_count, partitions=partitions or {}
    )


def refusal(attempt: model.Attempt, former: LoadedRecords, load: LoadedRecords) -> str:
    start, name = model.instant_text(attempt.interval.start), attempt.pipeline
    return (
        f"window {attempt.interval} of {name} keeps the rows that attempt {former.attempt} loaded: the log gives other records "
        f"now. {former.read} were read then, {load.read} now ({differences(former, load)}). Compaction, a log restored from a "
        f"backup or an unclean election does that. `logbus window diff --pipeline {name} --against broker {start}` shows what "
        f"differs; to replace the rows for good: `logbus replay run --pipeline {name} --window {start} --accept-other-records`"
    )


def differences(former: LoadedRecords, load: LoadedRecords) -> str:
    """The differences by partition, if the former load's figures by partition were stored."""
    nothing = {"read": 0, "fingerprint": as_text(0)}
    parts = sorted({*former.partitions, *load.partitions}, key=int) if former.partitions else []
    pairs = {part: (former.partitions.get(part, nothing), load.partitions.get(part, nothing)) for part in parts}
    changes = [
        f"partition {part}: {many(then['read'], 'record')} then, {now['read']:,} now"
        for part, (then, now) in pairs.items()
        if then["fingerprint"] != now["fingerprint"]
    ]
    return "; ".join(changes) or f"fingerprint {former.fingerprint} then, {load.fingerprint} now"
