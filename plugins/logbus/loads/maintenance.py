"""Maintenance of every pipeline's target, and of a partitioned table: a closed day's hourly leaves are merged into one; and a
lost ledger, rebuilt from the table: every commit of an Iceberg table carries its ledger entry.

A year of hours is 8,760 leaves, and a query that does not name its hours locks every one of them. So days older than
`keep_hourly` get one leaf each. The rows of every window stay as they are; a reload of an hour of such a day deletes and
inserts inside the day's leaf.

Merging a day is one transaction. The rows are copied while the hours are locked against writers only, so readers do not
notice. Then the leaves are exchanged, which locks the whole table for some milliseconds: the lock is requested with a
short timeout, tried a few times, and otherwise left for the next run. So a reader in a long transaction is neither
waited for nor interrupted, and no session queues behind our lock request for longer than that timeout.

Loads attach hours, and people attach and detach partitions, while this runs. So the day's hours are listed again once they are
locked, and once more when the table is: a day that is not as it was found, or that cannot become one leaf, keeps its hours
with a reason, and the next day gets its turn.

To rebuild a ledger, the pipeline is first registered again (its DAG does that, or `logbus pipeline register`). Then each entry
becomes a window with its boundaries, ranges, counts and attempt. What is already in the ledger stays; where it differs (it has
frozen other offsets since), nothing is changed and the window is reported. Audits must be done again. Dead letters were only in
the ledger's database: windows that had some are reported too, because loading them again restores those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Protocol, runtime_checkable

from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from logbus import errors, model
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import MaintenanceOptions, sink_for, snapshot_entry
from logbus.windows import freezing, rows, schema, sql_errors, table_names
from logbus.windows.chain import Chain
from logbus.windows.table_names import LEAF_SCHEMA, TableName, leaf_name, quoted

DAY = timedelta(days=1)

# How long readers may have to queue behind us, and how often we try before the day is left for the next run.
SWAP_LOCK_TIMEOUT_MS = 300
SWAP_TRIES_MAX = 5
SWAP_PAUSE_SECONDS = 1.0

# How long we wait for a load that has an hour locked; then the day is left for the next run.
SHARE_LOCK_TIMEOUT_MS = 5_000

MERGED_CHECK = "_window_start_of_the_day"

BOUND = re.compile(r"FOR VALUES FROM \((.+)\) TO \((.+)\)")
BEGINNING, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

CHANGED = "left for the next run, its partitions changed in the meantime"

# What a day may be refused for that says nothing about the next day.
LEFT_BECAUSE = {
    sql_errors.LOCK_NOT_AVAILABLE: "left for the next run, readers or loads hold its hours",
    sql_errors.DEADLOCK_DETECTED: "left for the next run, readers or loads hold its hours",
    sql_errors.UNDEFINED_TABLE: CHANGED,  # another run merged the day while we waited for its hours
    sql_errors.DUPLICATE_TABLE: "its hours stay, because a table with the name of the day's leaf exists and is no partition",
    sql_errors.DEPENDENT_OBJECTS: "its hours stay, because a view or something else depends on one of them",
}

Sleep = Callable[[float], None]


class DayStays(Exception):
    """The day cannot be merged now; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A partition of the target: rows with start <= _window_start < end."""

    table: TableName
    start: datetime
    end: datetime


def leaves(connection: Connection, target: TableName) -> list[Leaf]:
    """The leaves that logbus created, by start. Those that a user attached from another schema are left alone."""
    return [leaf for leaf in partitions(connection, target) if leaf.table.schema == LEAF_SCHEMA]


def partitions(connection: Connection, target: TableName) -> list[Leaf]:
    """All partitions by range, by start, whoever attached them."""
    query = text(
        "select n.nspname, c.relname, pg_get_expr(c.relpartbound, c.oid) bound from pg_inherits i "
        "join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace "
        "where i.inhparent = to_regclass(:target) and c.relispartition"
    )
    connection.execute(text("set local timezone = 'UTC'"))  # bounds are shown in the session's time zone
    rows = connection.execute(query, {"target": target.identifier}).all()
    # A partition that is dropped while this statement runs is still among its rows, and has no bound any more.
    ranges = [(TableName(name=row.relname, schema=row.nspname), BOUND.fullmatch(row.bound or "")) for row in rows]
    return sorted((_to_leaf(table, *bound.groups()) for table, bound in ranges if bound), key=lambda leaf: leaf.start)


def _to_leaf(table: TableName, start: str, end: str) -> Leaf:
    return Leaf(table=table, start=_bound_of(start, BEGINNING), end=_bound_of(end, END))


def _bound_of(shown: str, unbounded: datetime) -> datetime:
    """A bound as the server shows it. Users also write MINVALUE, 'infinity' and years that Python does not have."""
    try:
        return model.parse_instant(shown.strip("'"))
    except ValueError:
        return unbounded


def _mergeable_days(leaves: Sequence[Leaf], before: datetime) -> Iterator[tuple[datetime, list[Leaf]]]:
    """Days that end at or before `before` and have several leaves, all within the day."""
    inside = [leaf for leaf in leaves if leaf.end <= _day_of(leaf.start) + DAY]
    for day, group in groupby(inside, key=lambda leaf: _day_of(leaf.start)):
        hours = list(group)
        if len(hours) > 1 and day + DAY <= before:
            yield day, hours


def _day_of(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)


def merge_closed_days(
    engine: Engine, target: TableName, before: datetime, sleep: Sleep
) -> tuple[list[datetime], dict[datetime, str]]:
    """Merges every day that ended at or before `before`; returns the days merged, and why each of the others keeps its hours."""
    with engine.begin() as connection:
        days = list(_mergeable_days(leaves(connection, target), before))
    outcomes = {day: _merge_day(engine, target, day, hours, sleep) for day, hours in days}
    return [day for day, why in outcomes.items() if why is None], {day: why for day, why in outcomes.items() if why is not None}


def _merge_day(engine: Engine, target: TableName, day: datetime, hours: Sequence[Leaf], sleep: Sleep) -> str | None:
    """None if the day is merged; otherwise why not, and everything is as it was."""
    try:
        with engine.begin() as connection:
            _lock_against_writers(connection, hours)
            require_unchanged(connection, target, day, hours)
            merged = _copy_hours(connection, target, day, hours)
            swap(connection, target, day, hours, merged, sleep)
    except DayStays as reason:
        return str(reason)
    except DBAPIError as error:
        if (why := LEFT_BECAUSE.get(sql_errors.sqlstate_of(error) or "")) is None:
            raise
        return why
    return None


def _lock_against_writers(connection: Connection, hours: Sequence[Leaf]) -> None:
    """Against another merge of the same day, too."""
    connection.execute(text(f"set local lock_timeout = {SHARE_LOCK_TIMEOUT_MS}"))
    connection.execute(text(f"lock table {', '.join(leaf.table.sql for leaf in hours)} in share row exclusive mode"))


def require_unchanged(connection: Connection, target: TableName, day: datetime, hours: Sequence[Leaf]) -> None:
    """`DayStays` unless these hours are all partitions of the day: its leaf would overlap any other."""
    of_the_day = [leaf for leaf in partitions(connection, target) if leaf.start < day + DAY and leaf.end > day]
    foreign = [leaf for leaf in of_the_day if leaf.table.schema != LEAF_SCHEMA or leaf.start < day or leaf.end > day + DAY]
    if foreign:
        raise DayStays(f"its hours stay, because the day's leaf would overlap partition {foreign[0].table}")
    if of_the_day != list(hours):
        raise DayStays(CHANGED)
    _require_no_rows_in_default(connection, target, day)


def _require_no_rows_in_default(connection: Connection, target: TableName, day: datetime) -> None:
    """`DayStays` if rows of the day lie in a default partition: the day's leaf cannot be attached beside them."""
    query = text(
        "select c.relname, n.nspname from pg_partitioned_table p join pg_class c on c.oid = p.partdefid "
        "join pg_namespace n on n.oid = c.relnamespace where p.partrelid = to_regclass(:name)"
    )
    row = connection.execute(query, {"name": target.identifier}).one_or_none()
    if row is None:
        return
    default = TableName(name=row.relname, schema=row.nspname)
    rows = text(f"select exists(select from {default.sql} where _window_start >= :day and _window_start < :next)")
    if connection.execute(rows, {"day": day, "next": day + DAY}).scalar_one():
        raise DayStays(f"its hours stay, because rows of the day lie in the default partition {default}")


def _copy_hours(connection: Connection, target: TableName, day: datetime, hours: Sequence[Leaf]) -> TableName:
    """A table of the day's rows, ready to be attached: with the parent's indexes, and a check that saves a scan."""
    merged = _merged_name(target, day)
    start, end = model.instant_text(day), model.instant_text(day + DAY)
    columns = ", ".join(quoted(name) for name in _insertable_columns(connection, target))
    check = f"constraint {MERGED_CHECK} check (_window_start >= '{start}' and _window_start < '{end}')"
    connection.execute(text(f"create table {merged.sql} (like {target.sql} including all excluding identity, {check})"))
    for leaf in hours:
        connection.execute(text(f"insert into {merged.sql} ({columns}) select {columns} from {leaf.table.sql}"))
    # The hours are stored one after another: a few kilobytes of index find one of them without reading the day.
    connection.execute(text(f"create index on {merged.sql} using brin (_window_start)"))
    return merged


def _merged_name(target: TableName, day: datetime) -> TableName:
    hour = leaf_name(target, day)
    return TableName(name=hour.name[: -len("0000")] + "_day", schema=hour.schema)


def _insertable_columns(connection: Connection, target: TableName) -> list[str]:
    query = text(
        "select attname from pg_attribute where attrelid = to_regclass(:name) and attnum > 0 and not attisdropped "
        "and attgenerated = '' order by attnum"
    )
    return list(connection.execute(query, {"name": target.identifier}).scalars())


def swap(
    connection: Connection, target: TableName, day: datetime, hours: Sequence[Leaf], merged: TableName, sleep: Sleep
) -> None:
    """Replaces the hours' leaves by the day's. The copied rows are kept between tries."""
    connection.execute(text(f"set local lock_timeout = {SWAP_LOCK_TIMEOUT_MS}"))
    for tries_left in reversed(range(SWAP_TRIES_MAX)):
        try:
            with connection.begin_nested():
                exchange(connection, target, day, hours, merged)
            return
        except OperationalError as error:
            if not tries_left or not _is_lock_timeout(error):
                raise
        sleep(SWAP_PAUSE_SECONDS)


def exchange(connection: Connection, target: TableName, day: datetime, hours: Sequence[Leaf], merged: TableName) -> None:
    start, end = model.instant_text(day), model.instant_text(day + DAY)
    connection.execute(text(f"lock table only {target.sql} in access exclusive mode"))
    require_unchanged(connection, target, day, hours)  # a load may have attached an hour while the others were copied
    for leaf in hours:
        connection.execute(text(f"alter table {target.sql} detach partition {leaf.table.sql}"))
    connection.execute(text(f"alter table {target.sql} attach partition {merged.sql} for values from ('{start}') to ('{end}')"))
    connection.execute(text(f"alter table {merged.sql} drop constraint {MERGED_CHECK}"))
    connection.execute(text(f"drop table {', '.join(leaf.table.sql for leaf in hours)}"))


def _is_lock_timeout(error: OperationalError) -> bool:
    return sql_errors.sqlstate_of(error) in (sql_errors.LOCK_NOT_AVAILABLE, sql_errors.DEADLOCK_DETECTED)


def maintain(engine: Engine, options: MaintenanceOptions, pipeline_names: Collection[str] = ()) -> dict[str, list[str]]:
    """Maintains the targets of these pipelines, or of all; returns what was done, by pipeline.

    If one fails, the others still get their turn; the failures are raised together at the end.
    """
    pipelines = Ledger(engine).pipelines()
    unknown = sorted(set(pipeline_names) - {pipeline.name for pipeline in pipelines})
    if unknown:
        raise errors.PipelineUnknown(f"no pipeline {', '.join(unknown)} is registered; `logbus pipeline ls` lists them")
    done: dict[str, list[str]] = {}
    failures: list[str] = []
    for pipeline in pipelines:
        if not pipeline_names or pipeline.name in pipeline_names:
            try:
                done[pipeline.name] = sink_for(pipeline, engine).maintain(options)
            except Exception as error:  # a sink's libraries raise errors of many kinds
                failures.append(f"{pipeline.name}: {error}")
    if failures:
        raise errors.LogbusError(
            f"maintenance failed for {len(failures)} of {len(done) + len(failures)} pipelines: {'; '.join(failures)}"
        )
    return done


# A lost ledger, rebuilt from the table: every commit of an Iceberg table carries its ledger entry.


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
