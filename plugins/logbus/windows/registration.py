"""Registering a pipeline: it gets a name, a topic, a table, and for each partition an anchor where its windows begin.

Registering is idempotent. What decides which records belong to which window (topic, start, interval, isolation level)
and where they go (table) never changes under a name; how they are parsed and how long an hour stays open may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus.errors import PipelineConflict, UserError
from logbus.windows import boundaries, schema
from logbus.windows.boundaries import Neighbours
from logbus.windows.broker_questions import ISOLATION_LEVELS
from logbus.windows.chain import Chain
from logbus.windows.error_budget import budget_of
from logbus.windows.log_offsets import OffsetLog
from logbus.windows.migrations import create_ledger
from logbus.windows.model import Pipeline
from logbus.windows.rows import Row, pipeline_row, pipeline_values, to_pipeline

FIXED = ("topic", "table_name", "interval", "starts_at", "isolation_level")
CHANGEABLE = ("parse", "lateness", "settings")

LONGEST = timedelta(days=1)
MINUTE = timedelta(minutes=1)  # the finest that the names of leaves tell apart


def register(engine: Engine, pipeline: Pipeline, log: OffsetLog, now: datetime) -> Pipeline:
    """The pipeline as it is registered after the call."""
    refuse_nonsense(pipeline)
    create_ledger(engine)
    facts = log.topic(pipeline.topic)
    starts = log.start_offsets(pipeline.topic, facts.partitions)
    anchors = anchor_offsets(pipeline, log, facts.partitions, starts, now)
    values = pipeline_values(pipeline, facts.topic_id, now)
    with engine.begin() as connection:
        refuse_shared_table(connection, pipeline)
        made = connection.execute(
            insert_if_absent(schema.pipeline)
            .values(values)
            .on_conflict_do_nothing(index_elements=["name"])
            .returning(schema.pipeline.c.name)  # a conflict returns nothing; the count of rows is -1 for every insert
        ).scalar_one_or_none()
        row = pipeline_row(connection, pipeline.name, lock=True)
        refuse_conflict(row, values)
        connection.execute(
            update(schema.pipeline)
            .where(schema.pipeline.c.name == pipeline.name)
            .values({name: values[name] for name in CHANGEABLE})
        )
        if made is not None:
            Chain(connection, pipeline.name, facts.topic_id).anchor(pipeline.starts_at, anchors.items(), now)
        return to_pipeline(pipeline_row(connection, pipeline.name))


def refuse_nonsense(pipeline: Pipeline) -> None:
    if not timedelta(0) < pipeline.interval <= LONGEST or LONGEST % pipeline.interval or pipeline.interval % MINUTE:
        raise UserError(
            f"pipeline {pipeline.name}: an interval is whole minutes and divides a day evenly (1h, 15min, 24h); "
            f"{pipeline.interval} does not"
        )
    if pipeline.isolation_level not in ISOLATION_LEVELS:
        raise UserError(
            f"pipeline {pipeline.name}: isolation level {pipeline.isolation_level!r} is none of {', '.join(ISOLATION_LEVELS)}"
        )
    if pipeline.lateness < timedelta(0):
        raise UserError(f"pipeline {pipeline.name}: lateness {pipeline.lateness} is negative")
    budget_of(pipeline)


def refuse_shared_table(connection: Connection, pipeline: Pipeline) -> None:
    row_of = schema.pipeline
    other = select(row_of.c.name).where(row_of.c.table_name == pipeline.table, row_of.c.name != pipeline.name)
    owner = connection.execute(other).scalar_one_or_none()
    if owner is not None:
        raise PipelineConflict(f"table {pipeline.table} is loaded by pipeline {owner}: two pipelines need two tables")


def refuse_conflict(row: Row, values: Row) -> None:
    refuse_other_sink(row, values)
    different = [name for name in FIXED if row[name] != values[name]]
    if different:
        changes = ", ".join(f"{name} {row[name]!r} against {values[name]!r}" for name in different)
        raise PipelineConflict(
            f"pipeline {row['name']} is registered otherwise ({changes}): choose another name, or keep these as they are"
        )


def refuse_other_sink(row: Row, values: Row) -> None:
    """In another sink lies nothing of what the ledger says is loaded."""
    before, after = (found["settings"].get("sink", "postgres") for found in (row, values))
    if before != after:
        raise PipelineConflict(
            f"pipeline {row['name']} loads into the sink {before!r}, not {after!r}: what it has loaded lies there. "
            "Register another pipeline for the other sink; both may read the same topic"
        )


def anchor_offsets(
    pipeline: Pipeline, log: OffsetLog, partitions: Sequence[int], start_offsets: Mapping[int, int], now: datetime
) -> dict[int, int]:
    """Where the chain of windows begins in each partition: its first record, or the boundary at the pipeline's start."""
    if pipeline.starts_at is None:
        return {partition: start_offsets[partition] for partition in partitions}
    at_ms, horizon = boundaries.milliseconds(pipeline.starts_at), boundaries.horizon_ms(now)
    ends = log.end_offsets(pipeline.topic, partitions, pipeline.isolation_level)
    first = log.first_at_or_after(pipeline.topic, partitions, at_ms)
    found = {}
    for partition in partitions:
        start, end = start_offsets[partition], ends[partition]
        offset = boundaries.decide(first.get(partition), end)
        if boundaries.needs_scan(first.get(partition), horizon):
            records = log.records(pipeline.topic, partition, start, end)
            offset = boundaries.scan(records, at_ms=at_ms, horizon=horizon, end_offset=end).offset
        found[partition] = boundaries.clamp(offset, Neighbours(lower=start))
    return found
