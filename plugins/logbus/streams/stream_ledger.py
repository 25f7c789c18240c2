"""Streams in the ledger: defined, owned by the driver that began last, begun again from an hour, dropped.

The owner's number is the fence. A driver counts it up when it begins, and everything it does later compares it under the lock of
the stream's row: one that outlives its supervisor can compute, but neither commit nor beat. No process has to be stopped, told
or waited for. What a driver has to know about its past is here, and nowhere else: it has no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from logbus import errors, formatting, model, pipeline_settings
from logbus.loads import target
from logbus.parsing import parser_for
from logbus.streams import joins
from logbus.streams.definition import LiveRows, Lookup, Stream, of_ledger
from logbus.streams.joins import Join
from logbus.streams.kinds import arrival_table, loaded_windows
from logbus.streams.statements import WindowStatements
from logbus.streams.tail import LoadedRows
from logbus.windows import registration, rows, schema, sql_errors
from logbus.windows.chain import Chain
from logbus.windows.migrations import create_schema
from logbus.windows.table_names import SYSTEM_COLUMNS, identifier, parse_table

NAMED_MAX = 5  # hours that an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A driver's right to commit. `positions`: by partition where the next epoch begins; `epoch`: the number of the last one."""

    stream: str
    owner: int
    positions: Mapping[int, int]
    epoch: int = 0


def define(engine: sa.Engine, stream: Stream, now: datetime, *, since: datetime | None = None) -> None:
    """Puts it into the ledger, and makes its table and view if the pipeline's columns are known by now. A new stream begins at
    the newest frozen boundary, or at that of `since`.

    `WrongRequest` if another is there under its name, or a table of its names belongs to somebody else.
    """
    with engine.begin() as connection:
        row = rows.pipeline_row(connection, stream.pipeline, share=True)  # nothing is frozen meanwhile
        pipeline = rows.to_pipeline(row)
        if pipeline.options.sink != "postgres":
            raise errors.WrongRequest(
                f"stream {stream.name!r}: pipeline {pipeline.name!r} loads into {pipeline.options.sink}, and streams are proven "
                "against the rows of a PostgreSQL: load into sink='postgres'"
            )
        for table in (stream.view, stream.by_arrival):
            registration.refuse_table_of_others(connection, table, "stream", stream.name)
        chain = Chain(connection, pipeline.name, row["topic_id"])
        values = {
            "name": stream.name,
            "pipeline": stream.pipeline,
            "topic": pipeline.topic,
            "topic_id": row["topic_id"],
            "table_name": stream.table,
            "definition": stream.definition(),
            "since": chain.last_window_end() if since is None else since,
            "registered_at": now,
        }
        statement = insert(schema.stream).values(values).on_conflict_do_nothing().returning(schema.stream.c.name)
        if connection.execute(statement).first() is not None:
            add_positions(connection, stream.name, starts_at(chain, since))
        present_row = row_of(connection, stream.name, lock=True)
        present = of_ledger(present_row)
        if (present.content, present.lookup) != (stream.content, stream.lookup):
            raise errors.WrongRequest(
                f"stream {stream.name!r} is defined already, as {present.words()} of {present.pipeline} in "
                f"{present.table}. Give this one another name; or `logbus stream drop {stream.name}` drops that one"
            )
        if present != stream:  # how often, and how much at a time
            changed = {"definition": stream.definition()}
            connection.execute(sa.update(schema.stream).where(schema.stream.c.name == stream.name).values(changed))
        if present_row["columns"] is None and are_columns_declared(pipeline) and has_what_is_read(connection, stream, pipeline):
            ensure_tables(connection, present_row, pipeline)


def define_join(engine: sa.Engine, join: Join, now: datetime, *, since: datetime | None = None) -> None:
    """Both of its streams, then itself; its view is made with the tables of its second stream."""
    for side in join.sides:
        define(engine, side, now, since=since)
    row_in = schema.stream_join
    values = {
        "name": join.name,
        "left_stream": join.left.name,
        "right_stream": join.right.name,
        "table_name": join.table,
        "definition": join.definition(),
        "registered_at": now,
    }
    with engine.begin() as connection:
        registration.refuse_table_of_others(connection, join.view, "join", join.name)
        connection.execute(insert(row_in).values(values).on_conflict_do_nothing())
        (present,) = joins.joins_in(connection, row_in.c.name == join.name)
        if present != join:
            raise errors.WrongRequest(
                f"join {join.name!r} is defined already, as {present.words()} in {present.table}. Give this one another name; or "
                f"`logbus stream drop {join.name}` drops that one"
            )
        joins.ensure_views(connection, join.left.name)


def are_columns_declared(pipeline: model.Pipeline) -> bool:
    """Whether the columns are known without a parser of the user's own, which may be installed only where Spark runs, and before
    any record is read."""
    is_inferred = pipeline.options.infer or pipeline.parse in pipeline_settings.SCHEMA_PARSERS
    return not is_inferred and ":" not in pipeline.parse


def has_what_is_read(connection: sa.Connection, stream: Stream, pipeline: model.Pipeline) -> bool:
    """Whether the tables are there that the view has beside the stream's own."""
    return not isinstance(stream.content, LiveRows) or target.relation_exists(connection, parse_table(pipeline.table))


def require_columns(engine: sa.Engine, stream: Stream) -> None:
    """`WrongRequest` if the rows that its pipeline has loaded lack a column of the stream, or have it with another type. Those of
    a pipeline that takes its columns from its records may still come, so that this is for somebody who waits for an answer."""
    with engine.connect() as connection:
        pipeline = rows.to_pipeline(rows.pipeline_row(connection, stream.pipeline))
        table = parse_table(pipeline.table)
        if columns := target.table_columns(connection, table):
            loaded_windows(stream, pipeline.topic, table, columns).stored_columns()


def starts_at(chain: Chain, since: datetime | None) -> dict[int, int]:
    """By partition the boundary at an instant, or the newest one, or the anchor where none is frozen yet."""
    newest = {partition: end.offset for partition, end in chain.ends().items()}
    if since is None:
        return newest
    boundaries = {partition: chain.boundary(partition, since) for partition in newest}
    missing = [partition for partition, offset in boundaries.items() if offset is None]
    if missing:
        window = schema.window
        query = sa.select(window.c.starts_at).where(window.c.pipeline == chain.pipeline_name).order_by(window.c.starts_at.desc())
        frozen = [model.instant_text(start) for start in chain.connection.scalars(query.limit(NAMED_MAX))]
        raise errors.WrongRequest(
            f"no boundary of {chain.pipeline_name} is frozen at {model.instant_text(since)}, where the stream is to begin; these "
            f"hours are: {', '.join(frozen) or 'none yet'} (`logbus window ls --pipeline {chain.pipeline_name}`)"
        )
    return {partition: offset for partition, offset in boundaries.items() if offset is not None}


def add_positions(connection: sa.Connection, name: str, starts: Mapping[int, int]) -> None:
    values = [
        {"stream": name, "partition": partition, "start_offset": start, "end_offset": start}
        for partition, start in starts.items()
    ]
    if values:
        connection.execute(insert(schema.stream_partition).on_conflict_do_nothing(), values)


def find(connection: sa.Connection, name: str) -> Stream:
    return of_ledger(row_of(connection, name))


def row_of(connection: sa.Connection, name: str, *, lock: bool = False, share: bool = False) -> Mapping[Any, Any]:
    """With `lock`, commits wait for us, and we for them; with `share`, we wait for one that is on its way."""
    query = sa.select(schema.stream).where(schema.stream.c.name == name)
    row = connection.execute(query.with_for_update(read=share) if lock or share else query).mappings().one_or_none()
    if row is None:
        raise joins.unknown_stream(connection, name)
    return row


def hold_if_owner(connection: sa.Connection, ownership: Ownership) -> Mapping[Any, Any]:
    """Locks the stream's row until the transaction ends; `AttemptSuperseded` if another driver has begun since."""
    connection.execute(rows.HOLD_BRIEFLY)
    row = row_of(connection, ownership.stream, lock=True)
    if row["owner"] != ownership.owner:
        raise errors.AttemptSuperseded(
            f"driver {ownership.owner} of stream {ownership.stream} is superseded by driver {row['owner']}, of run "
            f"{row['owner_run'] or 'none: the stream was reset'}"
        )
    return row


# The tables.


def columns_of(pipeline: model.Pipeline) -> dict[str, str]:
    """The columns of a pipeline's rows, name to type, before there is a table; a pipeline that infers comes with those that are
    known by now."""
    parser = parser_for(pipeline.parse, pipeline.settings)
    system = {name: kind.removesuffix(" not null") for name, kind in SYSTEM_COLUMNS.items()}
    return {**system, **pipeline.options.columns, **parser.columns}


def ensure_tables(connection: sa.Connection, row: Mapping[Any, Any], pipeline: model.Pipeline) -> None:
    """Makes table and view of a stream that has none yet, and no other: a table of somebody else's is not written to. A view
    that alone is gone is made again. `WrongRequest` if they are not what the stream's definition makes of the pipeline's columns
    now."""
    stream = of_ledger(row)
    columns = columns_of(registration.with_inferred(connection, pipeline))
    loaded = loaded_windows(stream, pipeline.topic, parse_table(pipeline.table), columns)
    stored = loaded.stored_columns()
    tables = (stream.by_arrival, stream.view)
    present = [table for table in tables if target.relation_exists(connection, table)]
    if row["columns"] is None:
        if present:
            raise errors.WrongRequest(
                f"there is a table {present[0]} already, which stream {stream.name} did not make: give it another by table=..."
            )
        create_schema(connection, stream.by_arrival.schema)
        for statement in arrival_table(stream, stored).create_table():
            connection.execute(statement)
        connection.execute(sa.update(schema.stream).where(schema.stream.c.name == stream.name).values(columns=stored))
        make_view(connection, stream, loaded)
        return
    advice = f"`logbus stream drop {stream.name}` forgets it, and it can be defined again"
    if stream.by_arrival not in present:
        raise errors.WrongRequest(f"the table {stream.by_arrival} of stream {stream.name} is gone: {advice}")
    if stored != row["columns"]:
        before = row["columns"]
        changes = [f"{name} was {before.get(name)}, is {kind}" for name, kind in stored.items() if before.get(name) != kind]
        raise errors.WrongRequest(
            f"columns of pipeline {pipeline.name} that stream {stream.name} adds up have another type by now: "
            f"{'; '.join(changes)}. {advice}"
        )
    if stream.view not in present:
        make_view(connection, stream, loaded)


def make_view(connection: sa.Connection, stream: Stream, loaded: WindowStatements | LoadedRows) -> None:
    if stream.lookup is not None:
        refuse_lookup(connection, stream.name, stream.lookup)
    connection.execute(arrival_table(stream, loaded.stored_columns()).create_view(loaded))
    joins.ensure_views(connection, stream.name)


# Whether a column alone is unique: otherwise a row that is looked up would be counted twice.
UNIQUE_COLUMN = sa.text(
    "select exists(select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] where "
    "i.indrelid = to_regclass(:table) and i.indisunique and i.indpred is null and i.indnkeyatts = 1 and a.attname = :column)"
)


# The view reads it with the rights of its owner, which is who makes it.
CAN_READ = sa.text("select has_table_privilege(:table, 'select')")


def refuse_lookup(connection: sa.Connection, name: str, lookup: Lookup) -> None:
    columns = target.table_columns(connection, lookup.target, with_generated=True)
    if not columns:
        raise errors.WrongRequest(f"stream {name}: there is no table {lookup.table} to look up {lookup.on} in")
    if missing := [column for column in (lookup.on, *lookup.columns) if column not in columns]:
        raise errors.WrongRequest(f"stream {name}: {lookup.table} has no column {missing[0]!r}; it has {', '.join(columns)}")
    if not connection.scalar(CAN_READ, {"table": lookup.target.identifier}):
        raise errors.WrongRequest(f"stream {name}: {lookup.table} cannot be read: grant select on it to the owner of the view")
    if not connection.scalar(UNIQUE_COLUMN, {"table": lookup.target.identifier, "column": lookup.on}):
        raise errors.WrongRequest(
            f"stream {name}: {lookup.on} is not unique in {lookup.table}, so a row may count twice: "
            f"alter table {lookup.target.identifier} add unique ({identifier(lookup.on)})"
        )


# Drivers.


def begin(engine: sa.Engine, name: str, run_id: str, now: datetime) -> Ownership:
    """The right to commit, which no older driver has from here on. Makes the stream's tables, if nobody has."""
    with engine.begin() as connection:
        row = row_of(connection, name, lock=True)
        pipeline_row = rows.pipeline_row(connection, row["pipeline"])
        if row["topic_id"] != pipeline_row["topic_id"]:
            raise errors.WrongRequest(
                f"pipeline {row['pipeline']} goes on with another log of {row['topic']} than stream {name} has read: "
                f"`logbus stream reset {name} --since HOUR` begins at one of its hours"
            )
        ensure_tables(connection, row, rows.to_pipeline(pipeline_row))
        owner = row["owner"] + 1
        begun = {"owner": owner, "owner_run": run_id, "began_at": now, "heartbeat_at": now, "ended_at": None, "error": None}
        connection.execute(sa.update(schema.stream).where(schema.stream.c.name == name).values(begun))
        return Ownership(stream=name, owner=owner, positions=positions_in(connection, name), epoch=last_epoch(connection, name))


def positions(engine: sa.Engine, name: str) -> dict[int, int]:
    """Where the chain ends, after any commit that is still on its way: so the answer to a commit whose outcome is unknown."""
    with engine.begin() as connection:
        row_of(connection, name, share=True)
        return positions_in(connection, name)


def positions_in(connection: sa.Connection, name: str) -> dict[int, int]:
    row_in = schema.stream_partition
    query = sa.select(row_in.c.partition, row_in.c.end_offset).where(row_in.c.stream == name).order_by(row_in.c.partition)
    return {partition: end for partition, end in connection.execute(query)}  # noqa: C416 - a row is no tuple to mypy


def last_epoch(connection: sa.Connection, name: str) -> int:
    row_in = schema.stream_epoch
    query = sa.select(sa.func.coalesce(sa.func.max(row_in.c.number), 0)).where(row_in.c.stream == name)
    number: int = connection.execute(query).scalar_one()
    return number


def add_partitions(engine: sa.Engine, ownership: Ownership, partitions: Iterable[int]) -> Ownership:
    """Partitions that the topic has got since: read from their first record on, as the pipeline's windows have them."""
    with engine.begin() as connection:
        hold_if_owner(connection, ownership)
        add_positions(connection, ownership.stream, dict.fromkeys(partitions, 0))
        present = positions_in(connection, ownership.stream)
    return Ownership(stream=ownership.stream, owner=ownership.owner, positions=present, epoch=ownership.epoch)


def heartbeat(engine: sa.Engine, ownership: Ownership, now: datetime, *, error: str | None = None) -> None:
    """Says that the driver is alive, and what it waits for, if it does."""
    _tell(engine, ownership, {"heartbeat_at": now, "error": error and formatting.first_line(error)})


def end(engine: sa.Engine, ownership: Ownership, now: datetime, error: str | None = None) -> None:
    """The driver ends here, by the error or as it was told to. One that is superseded has nothing to say."""
    try:
        _tell(engine, ownership, {"heartbeat_at": now, "ended_at": now, "error": error and formatting.first_line(error)})
    except errors.AttemptSuperseded:
        return


def _tell(engine: sa.Engine, ownership: Ownership, values: Mapping[str, Any]) -> None:
    with engine.begin() as connection:
        hold_if_owner(connection, ownership)
        connection.execute(sa.update(schema.stream).where(schema.stream.c.name == ownership.stream).values(values))


# What a user does to a stream. A driver that is at work on it is superseded.


def reset(engine: sa.Engine, name: str, since: datetime, now: datetime) -> None:
    """Drops what arrived from the boundary at `since` on, with its proofs, and begins there again. On another log than before,
    also the parts of all that was read of the former one: its rows and proofs stay."""
    row_in, part, hour = schema.stream_partition, schema.epoch_part, schema.stream_hour
    with engine.begin() as connection:
        row = row_of(connection, name, lock=True)
        pipeline = rows.pipeline_row(connection, row["pipeline"], share=True)
        starts = starts_at(Chain(connection, pipeline["name"], pipeline["topic_id"]), since)
        is_same_log = row["topic_id"] == pipeline["topic_id"]
        is_dropped = sa.and_(part.c.stream == name, part.c.hour >= since)
        if is_same_log:
            # Partitions that no window has yet; and records before the boundary that were foreseen to be of an hour after it.
            starts = {**dict.fromkeys(positions_in(connection, name), 0), **starts}
            first_of = sa.select(part.c.partition, sa.func.min(part.c.start_offset)).where(is_dropped).group_by(part.c.partition)
            starts |= {partition: min(start, starts[partition]) for partition, start in connection.execute(first_of)}
            refuse_half_hours(connection, name, since, starts)
        connection.execute(sa.delete(part).where(is_dropped if is_same_log else part.c.stream == name))
        connection.execute(sa.delete(hour).where(hour.c.stream == name, hour.c.hour >= since))
        if row["columns"] is not None:
            table = arrival_table(of_ledger(row), row["columns"])
            connection.execute(table.delete_hours(), {"hours": [], "since": since})
        query = sa.select(row_in.c.partition, row_in.c.start_offset).where(row_in.c.stream == name)
        firsts: dict[int, int] = {partition: first for partition, first in connection.execute(query)} if is_same_log else {}  # noqa: C416
        connection.execute(sa.delete(row_in).where(row_in.c.stream == name))
        values = [
            # What is between an earlier end and the new beginning was read by no epoch: its proof takes it from the load.
            {
                "stream": name,
                "partition": partition,
                "start_offset": min(start, firsts.get(partition, start)),
                "end_offset": start,
            }
            for partition, start in starts.items()
        ]
        if values:
            connection.execute(sa.insert(row_in), values)
        first = (row["since"] and min(row["since"], since)) if is_same_log else since
        log = {"topic": pipeline["topic"], "topic_id": pipeline["topic_id"], "since": first}
        # What they had counted is forgotten: it says nothing about how far behind the stream is. Their numbers stay.
        is_its = schema.stream_epoch.c.stream == name
        connection.execute(sa.update(schema.stream_epoch).where(is_its).values(newest_timestamp=None))
        superseded = {"owner": row["owner"] + 1, "owner_run": None, "ended_at": now, "error": None}
        connection.execute(sa.update(schema.stream).where(schema.stream.c.name == name).values(**log, **superseded))


def refuse_half_hours(connection: sa.Connection, name: str, since: datetime, starts: Mapping[int, int]) -> None:
    """A part of an earlier hour that reaches beyond where it would begin counts records that would be read again."""
    part = schema.epoch_part
    for partition, start in starts.items():
        reaching = (part.c.stream == name, part.c.partition == partition, part.c.hour < since, part.c.end_offset > start)
        first = connection.execute(sa.select(sa.func.min(part.c.hour)).where(*reaching)).scalar_one()
        if first is not None:
            raise errors.WrongRequest(
                f"stream {name} counts records of {model.instant_text(since)} in {model.instant_text(first)}: "
                f"`logbus stream reset {name} --since {model.instant_text(first)}`"
            )


# In an order that violates no foreign key.
OF_STREAM = (schema.stream_hour, schema.epoch_part, schema.stream_epoch, schema.stream_partition)


def drop(engine: sa.Engine, name: str) -> None:
    """Forgets a stream and drops its view and its table; of a join, its view and both its streams. A driver that is at work on it
    is refused when it commits."""
    row_in = schema.stream_join
    with engine.begin() as connection:
        names = joins.sides_of(connection, name)
        for join in joins.joins_in(connection, row_in.c.name == name):
            drop_relations(connection, join.table, [sa.text(f"drop view if exists {join.view.sql}")])
            connection.execute(sa.delete(row_in).where(row_in.c.name == name))
        for stream_name in names or [name]:
            drop_stream(connection, stream_name)


def drop_stream(connection: sa.Connection, name: str) -> None:
    row = row_of(connection, name, lock=True)
    for join in joins.joins_of(connection, name):
        advice = f"`logbus stream drop {join.name}` drops the join and both"
        raise errors.UserError(f"stream {name} is a side of the join {join.name}: {advice}")
    if row["columns"] is not None:
        drop_relations(connection, row["table_name"], arrival_table(of_ledger(row), row["columns"]).drop())
    for table in OF_STREAM:
        connection.execute(sa.delete(table).where(table.c.stream == name))
    connection.execute(sa.delete(schema.stream).where(schema.stream.c.name == name))


def drop_relations(connection: sa.Connection, view: str, statements: Iterable[sa.TextClause]) -> None:
    try:
        for statement in statements:
            connection.execute(statement)
    except DBAPIError as error:
        if sql_errors.sqlstate_of(error) != sql_errors.DEPENDENT_OBJECTS:
            raise
        raise errors.UserError(f"something depends on {view}: drop that first ({error.orig})") from error
