"""The ledger entry that a snapshot carries: what was loaded of a window, by which attempt, from which offsets.

Rows in files and the ledger in PostgreSQL cannot share a transaction. So the commit that makes the files public carries this
entry. If a driver dies between the two commits, the rows are public, all of them, and only the ledger does not show it: the
table is right, and the next attempt brings the ledger up to date before it begins. A lost ledger is rebuilt from the entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text, update

from logbus import errors, model
from logbus.loads import commit, commit_checks, tally
from logbus.windows import rows, schema

# Raised with every change that an older reader would misunderstand.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One window as one attempt loaded it."""

    pipeline: str
    topic: str
    topic_id: str
    interval: model.Interval
    attempt: int
    ranges: tuple[model.OffsetRange, ...]
    counts: model.WindowCounts
    fingerprint: str
    loaded_at: datetime
    key: str  # the attempt's
    head_unknown: bool = False
    values: tally.Published = field(default_factory=tally.Published)
    other_records: tuple[Mapping[str, Any], ...] = ()  # the window's, in case the ledger has to be rebuilt
    spans: Mapping[int, tally.TimeSpan] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)  # records by stamped hour

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it."""
        return json.dumps(
            {
                "format": FORMAT,
                "pipeline": self.pipeline,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "start": model.instant_text(self.interval.start),
                "end": model.instant_text(self.interval.end),
                "attempt": self.attempt,
                "ranges": [_range_json(part, self.spans.get(part.partition)) for part in self.ranges],
                "counts": asdict(self.counts),
                "fingerprint": self.fingerprint,
                "loaded_at": model.instant_text(self.loaded_at),
                "head_unknown": self.head_unknown,
                "key": self.key,
                "values": asdict(self.values),
                "other_records": list(self.other_records),
                "partitions": self.partitions,
                "hours": {str(hour): count for hour, count in self.hours.items()},
            }
        )


def entry_of(
    load: commit_checks.SealedWindow,
    now: datetime,
    values: tally.Published,
    other_records: Sequence[Mapping[str, Any]] | None = None,
) -> LedgerEntry:
    """The entry of what a load is about to make public."""
    window = load.window
    return LedgerEntry(
        pipeline=load.pipeline.name,
        topic=window.topic,
        topic_id=window.topic_id,
        interval=window.interval,
        attempt=load.attempt.number,
        ranges=window.ranges,
        counts=load.counts,
        fingerprint=load.records.fingerprint,
        loaded_at=now,
        head_unknown=window.head_unknown,
        key=load.attempt.key,
        values=values,
        other_records=tuple(window.other_records if other_records is None else other_records),
        spans=load.staged.spans,
        partitions=load.records.partitions,
        hours=load.read.hours,
    )


def from_json(text: str) -> LedgerEntry:
    """An entry as it was written; `LogbusError` if a newer logbus wrote it."""
    entry = json.loads(text)
    if entry["format"] != FORMAT:
        raise errors.LogbusError(
            f"a ledger entry has format {entry['format']}, and this logbus reads {FORMAT}: install a newer logbus"
        )
    ranges = entry["ranges"]
    return LedgerEntry(
        pipeline=entry["pipeline"],
        topic=entry["topic"],
        topic_id=entry["topic_id"],
        interval=model.Interval(model.parse_instant(entry["start"]), model.parse_instant(entry["end"])),
        attempt=entry["attempt"],
        ranges=tuple(rows.to_range(entry["topic"], part) for part in ranges),
        counts=model.WindowCounts(**entry["counts"]),
        fingerprint=entry["fingerprint"],
        loaded_at=model.parse_instant(entry["loaded_at"]),
        head_unknown=entry["head_unknown"],
        key=entry["key"],
        values=tally.Published.from_json(entry["values"]),
        other_records=tuple(entry["other_records"]),
        partitions=entry["partitions"],
        hours={int(hour): count for hour, count in entry["hours"].items()},
        spans={part["partition"]: _to_span(part) for part in ranges},
    )


def _range_json(part: model.OffsetRange, span: tally.TimeSpan | None) -> dict[str, Any]:
    first, last = (span.first, span.last) if span else (None, None)
    return {
        "partition": part.partition,
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "lost": part.lost,
        "first": first and model.instant_text(first),
        "last": last and model.instant_text(last),
    }


def _to_span(part: Mapping[str, Any]) -> tally.TimeSpan:
    first, last = part["first"], part["last"]
    return tally.TimeSpan(first=first and model.parse_instant(first), last=last and model.parse_instant(last))


def bring_up_ledger(engine: Engine, attempt: model.Attempt, entry: LedgerEntry | None) -> LedgerEntry | None:
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
            raise errors.UserError(
                f"the table holds window {attempt.interval} of {attempt.pipeline} as attempt {entry.attempt} loaded it, "
                f"but the ledger knows of {row['last_attempt']} attempts: the ledger was lost, or this is another one. "
                f"`logbus ledger rebuild --pipeline {attempt.pipeline}` recreates it from the table"
            )
        if row["loaded_attempt"] == entry.attempt or row["last_attempt"] > attempt.number:
            return None  # a newer attempt settles on its own: it may have replaced this entry since we read it
        if is_of_this_ledger(connection, attempt.window_id, entry) and dead_letters_kept(connection, attempt.window_id, entry):
            write_entry(connection, row, entry)
            return None
        return entry


def is_of_this_ledger(connection: Connection, window_id: int, entry: LedgerEntry) -> bool:
    """Whether the entry is of the attempt with its number in this ledger."""
    row_of = schema.attempt
    same = (row_of.c.window_id == window_id, row_of.c.number == entry.attempt, row_of.c.key == entry.key)
    return connection.execute(select(row_of.c.number).where(*same)).one_or_none() is not None


def dead_letters_kept(connection: Connection, window_id: int, entry: LedgerEntry) -> bool:
    """A load is incomplete without its dead letters. Those of a crashed attempt are lost with it, so it must be done again."""
    dead = schema.dead_letter
    of_attempt = (dead.c.window_id == window_id, dead.c.attempt == entry.attempt)
    kept: int = connection.execute(select(func.count()).select_from(dead).where(*of_attempt)).scalar_one()
    return kept == entry.counts.dead_lettered


def write_entry(connection: Connection, row: rows.Row, entry: LedgerEntry) -> None:
    """Stores the window as loaded, with what the entry holds."""
    window, attempt, part = schema.window, schema.attempt, schema.window_range
    counted = {**rows.count_values(entry.counts), "fingerprint": entry.fingerprint}
    public = {"loaded_attempt": entry.attempt, "loaded_at": entry.loaded_at, "audited_at": None, "audit_problems": None}
    kept: dict[str, Any] = {"values_hash": asdict(entry.values)}
    kept |= {"other_records": list(entry.other_records)} if entry.other_records else {}
    kept |= commit.write_hours(connection, row["id"], entry.hours)
    connection.execute(update(window).where(window.c.id == row["id"]).values(**counted, **public, **kept))
    for partition, span in entry.spans.items():
        same = (part.c.window_id == row["id"], part.c.partition == partition)
        connection.execute(update(part).where(*same).values(first_timestamp=span.first, last_timestamp=span.last))
    loaded = (attempt.c.window_id == row["id"], attempt.c.number == entry.attempt)
    ended = {"state": rows.COMMITTED, "ended_at": entry.loaded_at, "partitions": dict(entry.partitions), "key": entry.key}
    connection.execute(update(attempt).where(*loaded).values(**counted, **ended))
    stale = text("delete from logbus.dead_letter where window_id = :id and attempt <> :attempt")
    connection.execute(stale, {"id": row["id"], "attempt": entry.attempt})


def committed_attempts(engine: Engine, window_id: int) -> set[int]:
    attempt = schema.attempt
    query = select(attempt.c.number).where(attempt.c.window_id == window_id, attempt.c.state == rows.COMMITTED)
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
        return {(row.starts_at, row.number) for row in connection.execute(query)}
