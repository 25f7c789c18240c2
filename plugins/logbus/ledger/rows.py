"""Converts ledger rows to values and back: the only module that depends on both."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, select

from logbus.errors import PipelineUnknown
from logbus.ledger import schema
from logbus.ledger.table_names import canonical_table
from logbus.model import Attempt, FrozenWindow, Interval, OffsetRange, Pipeline, WindowCounts, WindowState, Witness

Row = RowMapping | dict[str, Any]

ATTEMPT_RUNNING = "running"


# A pipeline's columns that have the same names as its fields.
PIPELINE_COLUMNS = ("name", "topic", "parse", "interval", "lateness", "starts_at", "isolation_level")


def pipeline_values(pipeline: Pipeline, topic_id: str, now: datetime) -> dict[str, Any]:
    same = {name: getattr(pipeline, name) for name in PIPELINE_COLUMNS}
    table, settings = canonical_table(pipeline.table), dict(pipeline.settings)
    return {**same, "topic_id": topic_id, "table_name": table, "settings": settings, "registered_at": now}


def to_pipeline(row: Row) -> Pipeline:
    return Pipeline(**{name: row[name] for name in PIPELINE_COLUMNS}, table=row["table_name"], settings=row["settings"])


def pipeline_rows(connection: Connection) -> list[Row]:
    """The rows of all pipelines, by name."""
    return list(connection.execute(select(schema.pipeline).order_by(schema.pipeline.c.name)).mappings())


def pipeline_row(connection: Connection, name: str, *, lock: bool = False, share: bool = False) -> Row:
    """The pipeline's row. With `lock`, other freezes of this pipeline wait for us: one row stands for all its partitions. With
    `share` it cannot change until the transaction ends, and others may share the lock."""
    query = select(schema.pipeline).where(schema.pipeline.c.name == name)
    if lock or share:
        query = query.with_for_update(read=not lock)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise PipelineUnknown(
            f"no pipeline {name!r} is registered; `logbus pipeline ls` lists them, `logbus pipeline register` makes one"
        )
    return row


def load_windows(connection: Connection, query: Select[Any]) -> list[FrozenWindow]:
    """The windows that a query over `schema.window` selects, with their ranges, in the query's order."""
    rows = connection.execute(query).mappings().all()
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    topics = dict(connection.execute(select(schema.pipeline.c.name, schema.pipeline.c.topic)).all())
    ranges: dict[int, list[OffsetRange]] = {window_id: [] for window_id in ids}
    part = schema.window_range
    running = running_windows(connection, ids)
    topic_of = {row["id"]: topics[row["pipeline"]] for row in rows}
    of_them = select(part).where(schema.among(part.c.window_id, ids)).order_by(part.c.partition)
    for found in connection.execute(of_them).mappings().all():  # all at once, not row by row: takes a third of the time
        ranges[found["window_id"]].append(to_range(topic_of[found["window_id"]], found))
    return [to_window(row, topic_of[row["id"]], ranges[row["id"]], row["id"] in running) for row in rows]


def load_window(connection: Connection, window_id: int) -> FrozenWindow:
    return load_windows(connection, select(schema.window).where(schema.window.c.id == window_id))[0]


def running_windows(connection: Connection, ids: Iterable[int]) -> set[int]:
    attempt = schema.attempt
    query = select(attempt.c.window_id).where(schema.among(attempt.c.window_id, ids), attempt.c.state == ATTEMPT_RUNNING)
    return set(connection.execute(query).scalars())


def to_range(topic: str, row: Row) -> OffsetRange:
    return OffsetRange(
        topic=topic,
        partition=row["partition"],
        start_offset=row["start_offset"],
        end_offset=row["end_offset"],
        lost=row["lost"],
    )


def to_window(row: Row, topic: str, ranges: Iterable[OffsetRange], is_running: bool) -> FrozenWindow:
    return FrozenWindow(
        id=row["id"],
        pipeline=row["pipeline"],
        topic=topic,
        interval=Interval(row["starts_at"], row["ends_at"]),
        topic_id=row["topic_id"],
        ranges=tuple(ranges),
        state=window_state(row, is_running),
        last_attempt=row["last_attempt"],
        loaded_attempt=row["loaded_attempt"],
        counts=to_counts(row),
        fingerprint=row["fingerprint"],
        head_unknown=row["head_unknown"],
        frozen_at=row["frozen_at"],
        loaded_at=row["loaded_at"],
        audited_at=row["audited_at"],
        other_records=tuple(row["other_records"] or ()),
        values_hash=row["values_hash"],
        loss_accepted=row["loss_accepted"],
    )


def window_state(row: Row, is_running: bool) -> WindowState:
    """A rerun in progress does not hide what is loaded: the table still holds it."""
    if row["audited_at"] is not None:
        return WindowState.AUDITED
    if row["loaded_attempt"] is not None:
        return WindowState.LOADED
    return WindowState.LOADING if is_running else WindowState.FROZEN


# The counts' columns in the ledger, by their names in `WindowCounts`.
COUNT_COLUMNS = {
    "read": "read_count",
    "loaded": "loaded_count",
    "dead_lettered": "dead_lettered_count",
    "filtered": "filtered_count",
    "late": "late_count",
    "early": "early_count",
    "lost": "lost_count",
    "bytes": "byte_count",
}


def to_counts(row: Row) -> WindowCounts | None:
    if row["loaded_attempt"] is None:
        return None
    return WindowCounts(**{name: row[column] for name, column in COUNT_COLUMNS.items()})


def count_values(counts: WindowCounts) -> dict[str, int]:
    return {column: getattr(counts, name) for name, column in COUNT_COLUMNS.items()}


def to_attempt(row: Row, pipeline_name: str, interval: Interval) -> Attempt:
    same = ("window_id", "number", "staging_table", "dead_letter_table", "definition", "key")
    return Attempt(**{name: row[name] for name in same}, pipeline=pipeline_name, interval=interval)


# A boundary's columns for the record before it, by their names in `Witness`.
WITNESS_COLUMNS = {
    "offset": "witness_offset",
    "leader_epoch": "witness_epoch",
    "timestamp_ms": "witness_ms",
    "hash": "witness_hash",
}


def to_witness(row: Row) -> Witness | None:
    """A boundary's witness; None if it was not read, or there was no record before the boundary."""
    if row["witness_offset"] is None:
        return None
    return Witness(**{name: row[column] for name, column in WITNESS_COLUMNS.items()})


def witness_values(witness: Witness | None) -> dict[str, Any]:
    return {column: getattr(witness, name, None) for name, column in WITNESS_COLUMNS.items()}
