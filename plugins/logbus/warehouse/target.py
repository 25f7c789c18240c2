"""The target table: partitioned by range on `_window_start`, one leaf for each loaded window that holds records.

Every row records its origin: topic, partition, offset, timestamp, key, window and the record's hash. The columns after
those are the parser's. A table that already exists and is not partitioned is the user's own: it is loaded by delete and
insert and never altered.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Engine, text

from logbus.errors import UserError
from logbus.ledger.migrations import create_schema
from logbus.ledger.table_names import TableName, quoted

SYSTEM_COLUMNS: Mapping[str, str] = {
    "_topic": "text not null",
    "_partition": "integer not null",
    "_offset": "bigint not null",
    "_timestamp": "timestamptz",
    "_key": "bytea",  # keys are bytes; convert_from(_key, 'UTF8') shows one that is text
    "_headers": "jsonb",  # [[name, content], ...] as sent, null where there are none; content that is not text: {"base64": ...}
    "_window_start": "timestamptz not null",
    "_fingerprint": "bigint not null",
}

# The types a parser may declare, by PostgreSQL's own names. Each has an Arrow type in the Spark job.
COLUMN_TYPES = ("text", "integer", "bigint", "double precision", "boolean", "timestamptz", "jsonb", "bytea")

# Sessions that create the same target wait for each other on this advisory lock and the table's name.
TARGET_LOCK = 0x746172

PARTITIONED = "p"

# How format_type spells the types that have another name here.
SPELLINGS = {"timestamptz": "timestamp with time zone"}


def ensure_target(engine: Engine, target: TableName, columns: Mapping[str, str]) -> None:
    """Creates the table unless it exists, and adds those of the parser's columns it lacks. `columns`: name to type."""
    wanted = {**SYSTEM_COLUMNS, **columns}
    with engine.begin() as connection:
        lock_target(connection, target)
        if relation_kind(connection, target) is None:
            definitions = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
            create_schema(connection, target.schema)
            connection.execute(text(f"create table {target.sql} ({definitions}) partition by range (_window_start)"))
            return
        present = table_columns(connection, target)
        refuse_other_types(target, present, wanted)
        add_columns(connection, target, {name: kind for name, kind in wanted.items() if name not in present})


def lock_target(connection: Connection, target: TableName) -> None:
    """One creator at a time, until the transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock(:key, hashtext(:name))"), {"key": TARGET_LOCK, "name": target.sql})


def add_columns(connection: Connection, target: TableName, missing: Mapping[str, str]) -> None:
    if not missing:
        return
    additions = ", ".join(f"add column {quoted(name)} {kind}" for name, kind in missing.items())
    if relation_kind(connection, target) != PARTITIONED:
        raise UserError(
            f"table {target} lacks columns that a load fills; it is yours, so add them: alter table {target} {additions}"
        )
    connection.execute(text(f"alter table {target.sql} {additions}"))


def refuse_other_types(target: TableName, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name, definition in wanted.items():
        kind = definition.removesuffix(" not null")
        if name in present and present[name] != SPELLINGS.get(kind, kind):
            raise UserError(
                f"column {name} of table {target} is {present[name]}, but the pipeline loads {kind}: "
                "declare the column as it is, or load into another table"
            )


def relation_kind(connection: Connection, table: TableName) -> str | None:
    """`p` for a partitioned table, `r` for a plain one, None if it does not exist."""
    query = text("select relkind::text from pg_class where oid = to_regclass(:name)")
    kind: str | None = connection.execute(query, {"name": table.sql}).scalar_one_or_none()
    return kind


def table_columns(connection: Connection, table: TableName) -> dict[str, str]:
    """Names and types of the columns, in the table's order, without those the server fills itself (generated, identity)."""
    query = text(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = to_regclass(:name) and attnum > 0 and not attisdropped and attgenerated = '' and attidentity = '' "
        "order by attnum"
    )
    return {row.attname: row.format_type for row in connection.execute(query, {"name": table.sql})}
