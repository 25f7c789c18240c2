"""The target table: partitioned by range on `_window_start`, one leaf for each loaded window that holds records.

Every row records its origin: topic, partition, offset, timestamp, key, window and the record's hash. The columns after
those are the parser's. A table that already exists and is not partitioned like that is the user's own: it is loaded by delete
and insert and never altered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from psycopg.errors import CheckViolation
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from logbus import errors, model, pipeline_settings
from logbus.windows.table_names import TableName, identifier, leaf_name, quoted

# A window's public rows, in whichever leaves; `window_parameters` returns the parameters.
ROWS_OF_WINDOW = "_window_start = :start and _topic = :topic"

# The types a parser may declare, by PostgreSQL's own names. Each has an Arrow type in the Spark job.
COLUMN_TYPES = ("text", "integer", "bigint", "double precision", "boolean", "timestamptz", "date", "jsonb", "bytea")

# Proves to ATTACH that every row belongs to the leaf, so that it need not scan them.
LEAF_CHECK = "_window_start_of_the_leaf"

# Sessions that create the same target wait for each other on this advisory lock and the table's name.
TARGET_LOCK = 0x746172

# How format_type spells the types that have another name here.
SPELLINGS = {"timestamptz": "timestamp with time zone"}


def window_parameters(window: model.FrozenWindow) -> dict[str, Any]:
    return {"start": window.interval.start, "topic": window.topic}


def validate_new_names(table: object, present: Collection[str], missing: Collection[str]) -> None:
    """No table of any sink gets a column whose name differs only in case from that of another one."""
    new = {name.casefold() for name in missing}
    if pair := pipeline_settings.twins(name for name in (*present, *missing) if name.casefold() in new):
        raise errors.UserError(
            f"table {table} would have the columns {pair[0]!r} and {pair[1]!r}, which differ only in upper and lower case, and "
            "many readers treat them as one. Declare the column as the table has it, leave one out, or load into another table"
        )


def lock_target(connection: Connection, target: TableName) -> None:
    """One creator at a time, until the transaction ends."""
    connection.execute(
        text("select pg_advisory_xact_lock(:key, hashtext(:name))"), {"key": TARGET_LOCK, "name": target.identifier}
    )


def add_columns(connection: Connection, target: TableName, missing: Mapping[str, str]) -> None:
    if not missing:
        return
    if not has_leaves(connection, target):
        clauses = ", ".join(f"add column {identifier(name)} {kind}" for name, kind in missing.items())
        raise errors.UserError(
            f"table {target} lacks columns that a load fills; it is yours, so add them: alter table {target} {clauses}"
        )
    additions = ", ".join(f"add column {quoted(name)} {kind}" for name, kind in missing.items())
    connection.execute(text(f"alter table {target.sql} {additions}"))


def follow_columns(connection: Connection, rows: TableName, target: TableName) -> None:
    """Adds the target's columns that an attempt's own table does not have yet."""
    present = table_columns(connection, rows)
    for name, kind in table_columns(connection, target).items():
        if name not in present:
            connection.execute(text(f"alter table {rows.sql} add column {quoted(name)} {kind}"))


def validate_types(target: TableName, present: Mapping[str, str], definitions: Mapping[str, str]) -> None:
    for name, definition in definitions.items():
        kind = definition.removesuffix(" not null")
        if name in present and present[name] != SPELLINGS.get(kind, kind):
            raise errors.UserError(
                f"column {name} of table {target} is {present[name]}, but the pipeline loads {kind}: "
                "declare the column as it is, or load into another table"
            )


def relation_exists(connection: Connection, table: TableName) -> bool:
    query = text("select to_regclass(:name) is not null")
    return bool(connection.execute(query, {"name": table.identifier}).scalar_one())


def has_leaves(connection: Connection, table: TableName) -> bool:
    """Whether the table is partitioned by range of `_window_start` alone, so that an hour can be a leaf of it. A table that is
    partitioned otherwise (by another column, by hash, by a function of the hour) keeps the partitions that its owner gives it."""
    query = text(
        "select exists(select from pg_partitioned_table p "
        "join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0] "
        "where p.partrelid = to_regclass(:name) and p.partstrat = 'r' and p.partnatts = 1 and a.attname = '_window_start')"
    )
    return bool(connection.execute(query, {"name": table.identifier}).scalar_one())


def parent_of(connection: Connection, leaf: TableName) -> TableName | None:
    """The table of which the leaf is a partition; None for a table of its own, and for none at all."""
    query = text(
        "select n.nspname, c.relname from pg_inherits i join pg_class c on c.oid = i.inhparent "
        "join pg_namespace n on n.oid = c.relnamespace where i.inhrelid = to_regclass(:name)"
    )
    parent = connection.execute(query, {"name": leaf.identifier}).one_or_none()
    return None if parent is None else TableName(name=parent.relname, schema=parent.nspname)


@contextmanager
def finding_partitions(connection: Connection, target: TableName, hour: model.Interval) -> Iterator[None]:
    """While rows of the hour are inserted: `LoadFailed`, with what to do, if the target has no partition for them."""
    try:
        with connection.begin_nested():
            yield
    except IntegrityError as error:
        # A check of the user's own has a name.
        if not isinstance(error.orig, CheckViolation) or error.orig.diag.constraint_name is not None:
            raise
        what = f"table {target} has no partition for rows of {hour}"
        raise errors.LoadFailed(f"{what}: {_way_out(connection, target, hour)}. Then try again") from error


def _way_out(connection: Connection, target: TableName, hour: model.Interval) -> str:
    """Why there is no partition for the hour, and what to do."""
    leaf = leaf_name(target, hour.start)
    if not relation_exists(connection, leaf):
        return "its partitions are yours, so give it one for them, or a default one"
    if (parent := parent_of(connection, leaf)) is None:
        bounds = f"for values from ('{model.instant_text(hour.start)}') to ('{model.instant_text(hour.end)}')"
        statement = f"alter table {target.identifier} attach partition {leaf.identifier} {bounds}"
        return f"{leaf} is detached. Attach it again ({statement}), or rename it, and the hour gets a new one"
    return (
        f"{leaf} is a partition of {parent}. If that is this table under another name, give it its name back (drop a {target} "
        f"that was made since, alter table {parent.identifier} rename to {identifier(target.name)}); otherwise rename {leaf}"
    )


def table_columns(connection: Connection, table: TableName, *, with_generated: bool = False) -> dict[str, str]:
    """Names and types of the columns, in the table's order; if not `with_generated`, without those the server fills itself."""
    query = text(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = to_regclass(:name) and attnum > 0 and not attisdropped "
        "and (:with_generated or (attgenerated = '' and attidentity = '')) order by attnum"
    )
    parameters = {"name": table.identifier, "with_generated": with_generated}
    return {row.attname: row.format_type for row in connection.execute(query, parameters)}
