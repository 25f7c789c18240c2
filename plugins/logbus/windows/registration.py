"""Registering a pipeline: it gets a name, a topic, a table, and for each partition an anchor where its windows begin.

Registering is idempotent. What determines which records belong to which window (topic, start, length, time zone, isolation level)
and where they go (table, sink) never changes under a name; the sink's location is fixed once anything is loaded; how records are
parsed and how long an hour stays open may change. Who may change them is checked here too: a DAG may, unless another DAG defines
the pipeline as it is registered (`pipeline_dags`); the command line may only with `--change`. `Ledger.define` registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import Connection, Engine, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import errors, formatting, model, pipeline_settings
from logbus.kafka import client, topics
from logbus.windows import boundaries, chain, rows, schema, table_names
from logbus.windows.boundaries import Neighbours

MINUTE = timedelta(minutes=1)  # the resolution of the names of leaf partitions

# Serializes registrations, so that no two pipelines get the same table. Any constant does, provided that all use the same one.
REGISTER_LOCK = 0x726567


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRegistration:
    """What registering did. `changes`: how the pipeline's definition differs from before; empty if it is new or unchanged."""

    pipeline: model.Pipeline
    is_new: bool
    changes: tuple[rows.Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a new pipeline's chain begins on the topic as it is now."""

    topic_id: str
    anchors: Mapping[int, int]


def refuse_change(
    connection: Connection,
    changes: Sequence[rows.Difference],
    registered: rows.Definition,
    given: rows.Definition,
    dag_id: str | None,
    *,
    may_change: bool,
) -> None:
    """`PipelineConflict` if the definition must not become the given one, or not by this caller."""
    name = registered["name"]
    refuse_fixed(name, changes)
    if has_rows(connection, name):
        refuse_elsewhere(registered, given)
    if not may_change:
        raise errors.PipelineConflict(
            f"pipeline {name} is already registered with a different definition, and was left unchanged: "
            f"{'; '.join(map(str, changes))}. If that is what you want, say --change"
        )
    if dag_id is not None:
        refuse_contradiction(connection, changes, registered, given, dag_id)


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


def validate_pipeline(pipeline: model.Pipeline) -> None:
    validate_grid(pipeline)
    if pipeline.isolation_level not in client.ISOLATION_LEVELS:
        raise errors.UserError(
            f"pipeline {pipeline.name}: isolation level {pipeline.isolation_level!r} is not one of "
            f"{', '.join(client.ISOLATION_LEVELS)}"
        )
    if pipeline.lateness < timedelta(0):
        raise errors.UserError(f"pipeline {pipeline.name}: lateness {pipeline.lateness} is negative")
    pipeline.options.validate(lambda message: errors.UserError(f"pipeline {pipeline.name}: {message}"))
    try:
        table_names.check_target(pipeline.table)
    except errors.UserError as error:
        raise errors.UserError(f"pipeline {pipeline.name}: table: {error}") from None


def validate_grid(pipeline: model.Pipeline) -> None:
    """Windows are as long as the intervals that a cron of Airflow can say: every one of them is then a run's."""
    length, name = pipeline.interval, pipeline.timezone
    divides_an_hour = timedelta(0) < length <= model.HOUR and not model.HOUR % length and not length % MINUTE
    if not divides_an_hour and (length <= model.HOUR or length % model.HOUR or model.DAY % length):
        raise errors.UserError(
            f"pipeline {pipeline.name}: every={model.length_text(length)!r} is not among the lengths of windows: minutes that "
            "divide an hour (1m, 5m, 15m, 30m), hours that divide a day (1h, 2h, 6h, 12h), or 1d"
        )
    if name == model.UTC_NAME:
        return
    if length != model.DAY:
        raise errors.UserError(
            f"pipeline {pipeline.name}: timezone={name!r} is for windows of a day (every='1d'), which begin at its midnights; "
            "shorter ones begin at the full hours and minutes of UTC: leave timezone out"
        )
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise errors.UserError(
            f"pipeline {pipeline.name}: there is no time zone {name!r}; zones have names such as 'Europe/Berlin'"
        ) from None


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


FIXED = ("topic", "table", "every", "timezone", "starts_at", "isolation_level", "sink")


def refuse_fixed(name: str, changes: Sequence[rows.Difference]) -> None:
    """Another table or sink has nothing of what the ledger shows as loaded, and other windows are other records."""
    if wrong := [difference for difference in changes if difference.option in FIXED]:
        raise errors.PipelineConflict(
            f"pipeline {name} is already registered with a different definition (registered against given): "
            f"{rows.in_words(wrong)}. That decides which records belong to which window and where its rows lie, and never "
            f"changes under a name: give it as it is registered (`logbus pipeline show {name}`), or choose another "
            "name and another table for another pipeline; both may read the same topic"
        )


def refuse_elsewhere(registered: rows.Definition, given: rows.Definition) -> None:
    """Rows that are loaded, or being loaded, stay where they were written."""
    before, after = rows.location_of(registered), rows.location_of(given)
    if before != after:
        raise errors.PipelineConflict(
            f"pipeline {registered['name']} loads into {before}, and its rows lie there: it cannot go on in {after}. "
            "Give the registered place (where the files themselves were moved, a link at the old place will do), or register "
            "another pipeline under another name for the new one"
        )


def has_rows(connection: Connection, name: str) -> bool:
    """Whether a window is loaded, or an attempt is running that may still write rows to the location with which it began."""
    window, attempt = schema.window, schema.attempt
    windows = select(window.c.id).where(window.c.pipeline == name)
    loaded = windows.where(window.c.loaded_attempt.is_not(None))
    running = windows.join(attempt, attempt.c.window_id == window.c.id).where(attempt.c.state == rows.ATTEMPT_RUNNING)
    return any(connection.execute(query.limit(1)).first() is not None for query in (loaded, running))


# One table, one pipeline: two pipelines that load into the same table would delete each other's rows.
#
# Iceberg catalogs and some file systems treat `Web` and `web` as the same name, so
# for sinks that write files, names that differ only in case are the same too.


def others_of_table(connection: Connection, pipeline: model.Pipeline) -> list[str]:
    """The other pipelines that are registered for the same table, by name."""
    row_of = schema.pipeline
    name = pipeline.table.lower()
    query = select(row_of).where(func.lower(row_of.c.table_name) == name, row_of.c.name != pipeline.name)
    candidates = [rows.to_pipeline(row) for row in connection.execute(query).mappings()]
    return sorted(other.name for other in candidates if is_one_table(pipeline, other))


def is_one_table(pipeline: model.Pipeline, other: model.Pipeline) -> bool:
    names = {pipeline.table, other.table}
    if are_files(pipeline) and are_files(other):
        names = {name.casefold() for name in names}
    return len(names) == 1


def are_files(pipeline: model.Pipeline) -> bool:
    return pipeline.options.sink != pipeline_settings.PipelineSettings.sink.default


def refuse_shared_table(connection: Connection, pipeline: model.Pipeline) -> None:
    """`PipelineConflict` if another pipeline is registered for the pipeline's table."""
    if others := others_of_table(connection, pipeline):
        raise errors.PipelineConflict(
            f"table {pipeline.table} is loaded by pipeline {' and '.join(others)}: two pipelines need two "
            "tables, or each deletes the other's rows"
        )
    refuse_table_of_others(connection, table_names.parse_table(pipeline.table), "pipeline", pipeline.name)


def refuse_table_of_others(connection: Connection, table: table_names.TableName, kind: str, name: str) -> None:
    """`WrongRequest` if the table is that of a pipeline, an aggregate, a stream or a join, except the one of this kind and name.
    Two pipelines may share one with a sink of files."""
    kinds = {"pipeline": schema.pipeline, "aggregate": schema.aggregate, "stream": schema.stream, "join": schema.stream_join}
    for owner, row_of in kinds.items():
        for other, its_table in connection.execute(select(row_of.c.name, row_of.c.table_name)):
            tables = {table_names.parse_table(its_table)}
            if owner == "stream":
                tables.add(table_names.by_arrival(its_table))
            if table in tables and (owner, other) != (kind, name) and not owner == kind == "pipeline":
                raise errors.WrongRequest(f"the table {table} belongs to the {owner} {other}: give {name!r} another by table=...")


# Which DAGs work on a pipeline, and how each of them defines it.
#
# A user who may see one of its DAGs may see the pipeline's windows, and a rerun is a run of such a DAG. Tasks register their DAG
# when they freeze and when they begin attempts. A pipeline that only the command line works on has no DAGs.
#
# Two DAGs may work on one pipeline if they define it alike. If they do not, the one that was edited last counts: a DAG whose
# definition has not changed alters nothing while another DAG defines the pipeline as it is registered, nor does a new DAG.
# So two contradicting DAGs never silently take turns, and a definition that both share can be edited: the first that runs changes
# the pipeline, and the other agrees.


def definitions_by_dag(connection: Connection, pipeline_name: str) -> dict[str, rows.Definition | None]:
    """How each DAG of the pipeline defined it when it last ran; None if it never did, or is forgotten."""
    owner = schema.pipeline_dag
    query = select(owner.c.dag_id, owner.c.definition).where(owner.c.pipeline == pipeline_name).order_by(owner.c.dag_id)
    return {row.dag_id: row.definition for row in connection.execute(query)}


def refuse_contradiction(
    connection: Connection,
    changes: Sequence[rows.Difference],
    registered: rows.Definition,
    given: rows.Definition,
    dag_id: str,
) -> None:
    """`PipelineConflict` if the DAG was not edited and contradicts another that defines the pipeline as it is registered."""
    by_dag = definitions_by_dag(connection, given["name"])
    others = [other for other, by_other in by_dag.items() if other != dag_id and by_other == registered]
    was_edited = by_dag.get(dag_id) not in (None, given)
    if was_edited or not others:
        return
    name, other = given["name"], others[0]
    raise errors.PipelineConflict(
        f"DAG {dag_id} defines pipeline {name} otherwise than DAG {other} does, and nothing was changed ({other} against "
        f"{dag_id}): {rows.in_words(changes)}. Define it once and give that to both: "
        "CLICKS = define_pipeline(...), hourly_ingest(CLICKS), catch_up(CLICKS). "
        f"If DAG {other} is gone: `logbus pipeline forget-dag {name} {other}`"
    )


def standing_for_another(engine: Engine, pipeline: model.Pipeline) -> list[str]:
    """The DAGs that defined the pipeline differently when they last ran, by name."""
    with engine.connect() as connection:
        by_dag = definitions_by_dag(connection, pipeline.name)
    return [dag_id for dag_id, given in by_dag.items() if given not in (None, rows.definition_of(pipeline))]


def forget(engine: Engine, pipeline_name: str, dag_id: str) -> None:
    """From now on the DAG has no definition, until it runs again. Who may see the pipeline does not change."""
    owner = schema.pipeline_dag
    of_dag = (owner.c.pipeline == pipeline_name, owner.c.dag_id == dag_id)
    with engine.begin() as connection:
        forgotten = connection.execute(update(owner).where(*of_dag).values(definition=None).returning(owner.c.dag_id)).first()
        if forgotten is None:
            dags = ", ".join(definitions_by_dag(connection, pipeline_name)) or "none at all"
            raise errors.PipelineUnknown(f"no DAG {dag_id!r} has worked on pipeline {pipeline_name!r}; these have: {dags}")


def dags_by_pipeline(connection: Connection) -> dict[str, list[str]]:
    """The DAGs of each pipeline that has any, in the order they were first seen."""
    owner = schema.pipeline_dag
    query = select(owner.c.pipeline, owner.c.dag_id).order_by(owner.c.pipeline, owner.c.seen_at, owner.c.dag_id)
    dag_ids: dict[str, list[str]] = {}
    for pipeline, dag_id in connection.execute(query):
        dag_ids.setdefault(pipeline, []).append(dag_id)
    return dag_ids


# Columns inferred from a pipeline's records, with the setting `{"infer": true}`, or from their schemas.
#
# A column is stored once, with the type it was first seen with, and never changes: two concurrent loads that look at different
# records agree. Inferred columns follow the declared ones, which take precedence, whenever the pipeline is read from the ledger.
# Of names that differ only in case the first has the column.


# PostgreSQL allows 1,600 columns: a topic whose member names are data must not use them up.
INFERRED_COLUMNS_MAX = 250


def with_inferred(connection: Connection, pipeline: model.Pipeline) -> model.Pipeline:
    """The pipeline with the inferred columns added to its setting `columns`."""
    if not pipeline.options.infer and pipeline.parse not in pipeline_settings.SCHEMA_PARSERS:
        return pipeline
    column = schema.inferred_column.c
    query = select(column.name, column.type).where(column.pipeline == pipeline.name).order_by(column.found_at, column.name)
    inferred: dict[str, str] = {row.name: row.type for row in connection.execute(query)}
    columns = with_new(pipeline.options.columns, inferred)
    return replace(pipeline, settings={**pipeline.settings, "columns": columns})


def remember_columns(engine: Engine, pipeline: model.Pipeline, columns: Mapping[str, str], now: datetime) -> None:
    """Stores new columns, up to `INFERRED_COLUMNS_MAX` in all; members beyond that get no column."""
    if not new_columns(pipeline, columns):
        return
    with engine.begin() as connection:
        # One load at a time: two could otherwise store names that differ only in case, and each add its own to the table.
        rows.pipeline_row(connection, pipeline.name, lock=True)
        new = new_columns(with_inferred(connection, pipeline), columns)
        values = [{"pipeline": pipeline.name, "name": name, "type": columns[name], "found_at": now} for name in new]
        if values:
            connection.execute(insert_if_absent(schema.inferred_column).values(values).on_conflict_do_nothing())


def new_columns(pipeline: model.Pipeline, inferred: Mapping[str, str]) -> list[str]:
    columns = pipeline.options.columns
    return [*with_new(columns, inferred)][len(columns) :][: max(0, INFERRED_COLUMNS_MAX - len(columns))]


def with_new(columns: Mapping[str, str], inferred: Mapping[str, str]) -> dict[str, str]:
    """The columns, and after them those of the inferred ones whose names no other has, in whatever case."""
    joined, names = {**columns}, {name.casefold() for name in columns}
    for name, kind in inferred.items():
        if name.casefold() not in names:
            joined[name] = kind
            names.add(name.casefold())
    return joined


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
        refuse_computed_from(connection, name)
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
            f"pipeline {name} has loaded {formatting.many(count, 'window')}, "
            f"from {model.instant_text(first)} to {model.instant_text(last)}: what proves their rows stays in the "
            "ledger. Take its DAG away, and nothing loads it any more"
        )


def refuse_computed_from(connection: Connection, name: str) -> None:
    for kind, row_of in (("aggregate", schema.aggregate), ("stream", schema.stream)):
        query = select(row_of.c.name).where(row_of.c.pipeline == name).order_by(row_of.c.name)
        if names := connection.scalars(query).all():
            raise errors.PipelineConflict(
                f"{kind}s are computed from pipeline {name}: {', '.join(names)}. `logbus {kind} drop NAME` first"
            )


def refuse_at_work(connection: Connection, name: str, now: datetime) -> None:
    query = select(func.count()).select_from(ATTEMPT.join(WINDOW, WINDOW.c.id == ATTEMPT.c.window_id))
    if connection.execute(query.where(WINDOW.c.pipeline == name, rows.is_alive(now))).scalar_one():
        raise errors.PipelineConflict(f"another run loads a window of {name} now: wait until that is over, or end it")
