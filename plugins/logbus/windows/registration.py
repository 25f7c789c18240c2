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

from sqlalchemy import Connection, Engine, delete, exists, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import errors, model, pipeline_settings
from logbus.formatting import many
from logbus.kafka import client, topics
from logbus.windows import boundaries, chain, dag_definitions, definition, rows, schema
from logbus.windows.boundaries import Neighbours
from logbus.windows.dag_definitions import dags_by_pipeline
from logbus.windows.migrations import create_ledger
from logbus.windows.table_names import canonical_table, check_target

CHANGEABLE = ("parse", "lateness", "settings")

MINUTE = timedelta(minutes=1)  # the resolution of the names of leaf partitions

# Serializes registrations, so that no two pipelines get the same table. Any constant does, provided that all use the same one.
REGISTER_LOCK = 0x726567


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRegistration:
    """What registering did. `changes`: how the pipeline's definition differs from before; empty if it is new or unchanged."""

    pipeline: model.Pipeline
    is_new: bool
    changes: tuple[definition.Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a new pipeline's chain begins on the topic as it is now."""

    topic_id: str
    anchors: Mapping[int, int]


def register(
    engine: Engine,
    pipeline: model.Pipeline,
    log: topics.OffsetLog,
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
    validate_pipeline(pipeline)
    create_ledger(engine)
    beginning = None if is_registered(engine, pipeline.name) else beginning_of(pipeline, log, now)
    with engine.begin() as connection:
        is_new = beginning is not None and make(connection, pipeline, beginning, now)
        registered = rows.to_pipeline(rows.pipeline_row(connection, pipeline.name, lock=True))
        refuse_fixed(registered, pipeline)
        refuse_moved(connection, registered, pipeline)
        changes = definition.differences(registered, pipeline)
        if changes and not may_change:
            refuse_change(registered, changes)
        if dag_id is not None:
            dag_definitions.refuse_contradiction(connection, registered, pipeline, dag_id)
        if changes:
            change(connection, pipeline, now)
        if dag_id is not None and remembers:
            dag_definitions.remember_definition(connection, pipeline, dag_id, now)
        present = rows.to_pipeline(rows.pipeline_row(connection, pipeline.name))
    return PipelineRegistration(pipeline=present, is_new=is_new, changes=tuple(changes))


def is_registered(engine: Engine, name: str) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(select(exists().where(schema.pipeline.c.name == name))).scalar_one())


def beginning_of(pipeline: model.Pipeline, log: topics.OffsetLog, now: datetime) -> Beginning:
    facts = log.topic(pipeline.topic)
    starts = log.start_offsets(pipeline.topic, facts.partitions)
    anchors = anchor_offsets(pipeline, log, facts.partitions, starts, now)
    return Beginning(topic_id=facts.topic_id, anchors=anchors)


def make(connection: Connection, pipeline: model.Pipeline, beginning: Beginning, now: datetime) -> bool:
    """False if another process created it first."""
    connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": REGISTER_LOCK})
    refuse_shared_table(connection, pipeline)
    created = connection.execute(
        insert_if_absent(schema.pipeline)
        .values(rows.pipeline_values(pipeline, beginning.topic_id, now))
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(schema.pipeline.c.name)  # a conflict returns no row; rowcount is -1 for every insert
    ).scalar_one_or_none()
    if created is None:
        return False
    chain.Chain(connection, pipeline.name, beginning.topic_id).anchor(pipeline.starts_at, beginning.anchors.items(), now)
    return True


def change(connection: Connection, pipeline: model.Pipeline, now: datetime) -> None:
    values = rows.pipeline_values(pipeline, "", now)
    is_pipeline = schema.pipeline.c.name == pipeline.name
    connection.execute(update(schema.pipeline).where(is_pipeline).values({name: values[name] for name in CHANGEABLE}))


def validate_pipeline(pipeline: model.Pipeline) -> None:
    length = pipeline.interval
    if not timedelta(0) < length <= model.INTERVAL_LONGEST or model.INTERVAL_LONGEST % length or length % MINUTE:
        raise errors.UserError(
            f"pipeline {pipeline.name}: an interval is whole minutes and divides a day evenly (1h, 15min, 24h); {length} does not"
        )
    if pipeline.isolation_level not in client.ISOLATION_LEVELS:
        raise errors.UserError(
            f"pipeline {pipeline.name}: isolation level {pipeline.isolation_level!r} is not one of "
            f"{', '.join(client.ISOLATION_LEVELS)}"
        )
    if pipeline.lateness < timedelta(0):
        raise errors.UserError(f"pipeline {pipeline.name}: lateness {pipeline.lateness} is negative")
    pipeline.options.validate(lambda message: errors.UserError(f"pipeline {pipeline.name}: {message}"))
    try:
        check_target(pipeline.table)
    except errors.UserError as error:
        raise errors.UserError(f"pipeline {pipeline.name}: table: {error}") from None


def refuse_change(registered: model.Pipeline, changes: Sequence[definition.Difference]) -> None:
    raise errors.PipelineConflict(
        f"pipeline {registered.name} is already registered with a different definition, and was left unchanged: "
        f"{'; '.join(map(str, changes))}. If that is what you want, say --change"
    )


def anchor_offsets(
    pipeline: model.Pipeline, log: topics.OffsetLog, partitions: Sequence[int], start_offsets: Mapping[int, int], now: datetime
) -> dict[int, int]:
    """Where the chain of windows begins in each partition: its first record, or the boundary at the pipeline's start."""
    if pipeline.starts_at is None:
        return {partition: start_offsets[partition] for partition in partitions}
    at_ms, horizon = model.milliseconds(pipeline.starts_at), boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    ends = log.end_offsets(pipeline.topic, partitions, pipeline.isolation_level)
    first = log.first_at_or_after(pipeline.topic, partitions, at_ms)
    offsets = {}
    for partition in partitions:
        start, end = start_offsets[partition], ends[partition]
        offset = boundaries.decide(first.get(partition), end)
        if boundaries.needs_scan(first.get(partition), horizon):
            records = log.records(pipeline.topic, partition, start, end)
            offset = boundaries.scan(records, at_ms=at_ms, horizon=horizon, end_offset=end).offset
        offsets[partition] = boundaries.clamp(offset, Neighbours(lower=start))
    return offsets


# What never changes under a pipeline's name: which records its windows hold, and where its rows are stored.
#
# The sink's location (a directory, a catalog) may be corrected while nothing is stored there; from the first attempt on it is
# where the ledger looks for what is loaded.


FIXED = ("topic", "table", "interval", "starts_at", "isolation_level", "sink")


def refuse_fixed(registered: model.Pipeline, given: model.Pipeline) -> None:
    """Another table or sink has nothing of what the ledger shows as loaded, and other windows are other records."""
    wrong = [difference for difference in definition.differences(registered, given) if difference.option in FIXED]
    if wrong:
        raise errors.PipelineConflict(
            f"pipeline {registered.name} is already registered with a different definition (registered against given): "
            f"{definition.in_words(wrong)}. That decides which records belong to which window and where its rows lie, and never "
            f"changes under a name: give it as it is registered (`logbus pipeline show {registered.name}`), or choose another "
            "name and another table for another pipeline; both may read the same topic"
        )


def refuse_moved(connection: Connection, registered: model.Pipeline, given: model.Pipeline) -> None:
    """Rows that are loaded, or being loaded, stay where they were written."""
    if definition.location_of(registered) != definition.location_of(given) and has_rows(connection, registered.name):
        refuse_elsewhere(registered, given)


def refuse_other_target(registered: model.Pipeline, given: model.Pipeline) -> None:
    """`PipelineConflict` if rows loaded as `given` would not end up where the ledger looks for them."""
    refuse_fixed(registered, given)
    refuse_elsewhere(registered, given)


def refuse_elsewhere(registered: model.Pipeline, given: model.Pipeline) -> None:
    before, after = definition.location_of(registered), definition.location_of(given)
    if before != after:
        raise errors.PipelineConflict(
            f"pipeline {registered.name} loads into {place(before)}, and its rows lie there: it cannot go on in {place(after)}. "
            "Give the registered place (where the files themselves were moved, a link at the old place will do), or register "
            "another pipeline under another name for the new one"
        )


def place(location: dict[str, str]) -> str:
    return ", ".join(f"{option} {value}" for option, value in location.items()) or "no place at all"


def has_rows(connection: Connection, name: str) -> bool:
    """Whether a window is loaded, or an attempt is running that may still write rows to the location with which it began."""
    window, attempt = schema.window, schema.attempt
    windows = select(window.c.id).where(window.c.pipeline == name)
    loaded = windows.where(window.c.loaded_attempt.is_not(None))
    running = windows.join(attempt, attempt.c.window_id == window.c.id).where(attempt.c.state == rows.ATTEMPT_RUNNING)
    return any(connection.execute(query.limit(1)).first() is not None for query in (loaded, running))


# One table, one pipeline: two pipelines that load into the same table would delete each other's rows.
#
# Names are compared in their canonical form. Iceberg catalogs and some file systems treat `Web` and `web` as the same name, so
# for sinks that write files, names that differ only in case are the same too.


def others_of_table(connection: Connection, pipeline: model.Pipeline) -> list[str]:
    """The other pipelines that are registered for the same table, by name."""
    row_of = schema.pipeline
    name = canonical_table(pipeline.table).lower()
    query = select(row_of).where(func.lower(row_of.c.table_name) == name, row_of.c.name != pipeline.name)
    candidates = [rows.to_pipeline(row) for row in connection.execute(query).mappings()]
    return sorted(other.name for other in candidates if is_one_table(pipeline, other))


def is_one_table(pipeline: model.Pipeline, other: model.Pipeline) -> bool:
    names = {canonical_table(pipeline.table), canonical_table(other.table)}
    if are_files(pipeline) and are_files(other):
        names = {name.casefold() for name in names}
    return len(names) == 1


def are_files(pipeline: model.Pipeline) -> bool:
    return pipeline.options.sink != pipeline_settings.PipelineSettings.sink.default


def refuse_shared_table(connection: Connection, pipeline: model.Pipeline) -> None:
    """`PipelineConflict` if another pipeline is registered for the pipeline's table."""
    if others := others_of_table(connection, pipeline):
        raise errors.PipelineConflict(
            f"table {canonical_table(pipeline.table)} is loaded by pipeline {' and '.join(others)}: two pipelines need two "
            "tables, or each deletes the other's rows"
        )


# Deleting a pipeline that was registered by mistake: a mistyped name, the wrong topic, a trial.
#
# Only possible if nothing is loaded. Loaded rows are proven by their windows, so a pipeline with rows stays; it costs nothing
# once no DAG works on it. Deleting a pipeline leaves its topic as it is, and the pipeline may be registered again.


WINDOW, ATTEMPT = schema.window, schema.attempt

# What belongs to a window that was never loaded, and to the pipeline itself; in an order that violates no foreign key.
OF_WINDOWS = (ATTEMPT, schema.window_hour, schema.window_range)
OF_PIPELINE = (WINDOW, schema.boundary, schema.anchor, schema.pipeline_dag, schema.inferred_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is deleted with a pipeline: frozen, unloaded windows and attempts at them. `dag_ids` would register it again."""

    pipeline: str
    windows: int
    attempts: int
    dag_ids: tuple[str, ...]


def remove(engine: Engine, name: str, now: datetime, *, is_executed: bool) -> Removal:
    """Raises `PipelineUnknown`, or `PipelineConflict` if something is loaded or another run is at work on it."""
    with engine.begin() as connection:
        rows.pipeline_row(connection, name, lock=True)  # a concurrent freeze waits, then finds it gone
        refuse_loaded(connection, name)
        refuse_at_work(connection, name, now)
        windows = select(WINDOW.c.id).where(WINDOW.c.pipeline == name)
        removal = Removal(
            pipeline=name,
            windows=connection.execute(select(func.count()).select_from(windows.subquery())).scalar_one(),
            attempts=connection.execute(select(func.count()).where(ATTEMPT.c.window_id.in_(windows))).scalar_one(),
            dag_ids=tuple(dags_by_pipeline(connection).get(name, ())),
        )
        if is_executed:
            for table in OF_WINDOWS:
                connection.execute(delete(table).where(table.c.window_id.in_(windows)))
            for table in OF_PIPELINE:
                connection.execute(delete(table).where(table.c.pipeline == name))
            connection.execute(delete(schema.pipeline).where(schema.pipeline.c.name == name))
    return removal


def refuse_loaded(connection: Connection, name: str) -> None:
    loaded = (WINDOW.c.pipeline == name, WINDOW.c.loaded_attempt.is_not(None))
    query = select(func.count(), func.min(WINDOW.c.starts_at), func.max(WINDOW.c.starts_at)).where(*loaded)
    count, first, last = connection.execute(query).one()
    if count:
        raise errors.PipelineConflict(
            f"pipeline {name} has loaded {many(count, 'window')}, "
            f"from {model.instant_text(first)} to {model.instant_text(last)}: what proves their rows stays in the "
            "ledger. Take its DAG away, and nothing loads it any more"
        )


def refuse_at_work(connection: Connection, name: str, now: datetime) -> None:
    query = select(func.count()).select_from(ATTEMPT.join(WINDOW, WINDOW.c.id == ATTEMPT.c.window_id))
    if connection.execute(query.where(WINDOW.c.pipeline == name, rows.is_alive(now))).scalar_one():
        raise errors.PipelineConflict(f"another run loads a window of {name} now: wait until that is over, or end it")
