"""Registering a pipeline: it gets a name, a topic, a table, and for each partition an anchor where its windows begin.

Registering is idempotent. What determines which records belong to which window (topic, start, interval, isolation level)
and where they go (table, sink) never changes under a name; the sink's location is fixed once anything is loaded; how records are
parsed and how long an hour stays open may change. Who may change them is checked here too: a DAG may, unless another DAG defines
the pipeline as it is registered (`pipeline_dags`); the command line may only with `--change`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, exists, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus.errors import PipelineConflict, UserError
from logbus.kafka.client import ISOLATION_LEVELS
from logbus.kafka.topics import OffsetLog
from logbus.ledger import boundaries, pipeline_dags, schema
from logbus.ledger.boundaries import Neighbours
from logbus.ledger.chain import Chain
from logbus.ledger.definition import Difference, differences
from logbus.ledger.fixed import refuse_fixed, refuse_moved
from logbus.ledger.migrations import create_ledger
from logbus.ledger.rows import pipeline_row, pipeline_values, to_pipeline
from logbus.ledger.table_names import check_target
from logbus.ledger.table_owners import refuse_shared_table
from logbus.model import INTERVAL_LONGEST, Pipeline, milliseconds

CHANGEABLE = ("parse", "lateness", "settings")

MINUTE = timedelta(minutes=1)  # the resolution of the names of leaf partitions

# Serializes registrations, so that no two pipelines get the same table. Any constant does, provided that all use the same one.
REGISTER_LOCK = 0x726567


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRegistration:
    """What registering did. `changes`: how the pipeline's definition differs from before; empty if it is new or unchanged."""

    pipeline: Pipeline
    is_new: bool
    changes: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a new pipeline's chain begins on the topic as it is now."""

    topic_id: str
    anchors: Mapping[int, int]


def register(
    engine: Engine,
    pipeline: Pipeline,
    log: OffsetLog,
    now: datetime,
    *,
    dag_id: str | None = None,
    remembers: bool = True,
    may_change: bool = True,
) -> PipelineRegistration:
    """Creates the pipeline if it does not exist; if it does, only what no record's place depends on may change.

    :param dag_id: the DAG with this definition: refused if another DAG defines the pipeline as it is registered
    :param remembers: whether the DAG works on the pipeline, so that later registrations are checked against its definition
    :param may_change: False: another definition is a `PipelineConflict`, whose message lists what would change
    """
    refuse_nonsense(pipeline)
    create_ledger(engine)
    beginning = None if is_registered(engine, pipeline.name) else beginning_of(pipeline, log, now)
    with engine.begin() as connection:
        is_new = beginning is not None and make(connection, pipeline, beginning, now)
        registered = to_pipeline(pipeline_row(connection, pipeline.name, lock=True))
        refuse_shared_table(connection, registered)
        refuse_fixed(registered, pipeline)
        refuse_moved(connection, registered, pipeline)
        changes = differences(registered, pipeline)
        if changes and not may_change:
            refuse_change(registered, changes)
        if dag_id is not None:
            pipeline_dags.refuse_contradiction(connection, registered, pipeline, dag_id)
        if changes:
            change(connection, pipeline, now)
        if dag_id is not None and remembers:
            pipeline_dags.remember_definition(connection, pipeline, dag_id, now)
        found = to_pipeline(pipeline_row(connection, pipeline.name))
    return PipelineRegistration(pipeline=found, is_new=is_new, changes=tuple(changes))


def is_registered(engine: Engine, name: str) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(select(exists().where(schema.pipeline.c.name == name))).scalar_one())


def beginning_of(pipeline: Pipeline, log: OffsetLog, now: datetime) -> Beginning:
    facts = log.topic(pipeline.topic)
    starts = log.start_offsets(pipeline.topic, facts.partitions)
    anchors = anchor_offsets(pipeline, log, facts.partitions, starts, now)
    return Beginning(topic_id=facts.topic_id, anchors=anchors)


def make(connection: Connection, pipeline: Pipeline, beginning: Beginning, now: datetime) -> bool:
    """False if another process created it first."""
    connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": REGISTER_LOCK})
    refuse_shared_table(connection, pipeline)
    made = connection.execute(
        insert_if_absent(schema.pipeline)
        .values(pipeline_values(pipeline, beginning.topic_id, now))
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(schema.pipeline.c.name)  # a conflict returns no row; rowcount is -1 for every insert
    ).scalar_one_or_none()
    if made is None:
        return False
    Chain(connection, pipeline.name, beginning.topic_id).anchor(pipeline.starts_at, beginning.anchors.items(), now)
    return True


def change(connection: Connection, pipeline: Pipeline, now: datetime) -> None:
    values = pipeline_values(pipeline, "", now)
    mine = schema.pipeline.c.name == pipeline.name
    connection.execute(update(schema.pipeline).where(mine).values({name: values[name] for name in CHANGEABLE}))


def refuse_nonsense(pipeline: Pipeline) -> None:
    length = pipeline.interval
    if not timedelta(0) < length <= INTERVAL_LONGEST or INTERVAL_LONGEST % length or length % MINUTE:
        raise UserError(
            f"pipeline {pipeline.name}: an interval is whole minutes and divides a day evenly (1h, 15min, 24h); {length} does not"
        )
    if pipeline.isolation_level not in ISOLATION_LEVELS:
        raise UserError(
            f"pipeline {pipeline.name}: isolation level {pipeline.isolation_level!r} is not one of {', '.join(ISOLATION_LEVELS)}"
        )
    if pipeline.lateness < timedelta(0):
        raise UserError(f"pipeline {pipeline.name}: lateness {pipeline.lateness} is negative")
    pipeline.options.refuse_wrong(lambda message: UserError(f"pipeline {pipeline.name}: {message}"))
    try:
        check_target(pipeline.table)
    except UserError as error:
        raise UserError(f"pipeline {pipeline.name}: table: {error}") from None


def refuse_change(registered: Pipeline, changes: Sequence[Difference]) -> None:
    raise PipelineConflict(
        f"pipeline {registered.name} is registered otherwise, and nothing was changed: {'; '.join(map(str, changes))}. "
        "If that is what you want, say --change"
    )


def anchor_offsets(
    pipeline: Pipeline, log: OffsetLog, partitions: Sequence[int], start_offsets: Mapping[int, int], now: datetime
) -> dict[int, int]:
    """Where the chain of windows begins in each partition: its first record, or the boundary at the pipeline's start."""
    if pipeline.starts_at is None:
        return {partition: start_offsets[partition] for partition in partitions}
    at_ms, horizon = milliseconds(pipeline.starts_at), boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
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
