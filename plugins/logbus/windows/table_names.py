"""Names of tables, their schemas and parsing, and of columns in front of a parser's. Without SQLAlchemy: Spark workers need them
too.

A name is taken as it is written, case included, because statements always quote it; so `T` and `t` are two tables in PostgreSQL.
Only the schema may be omitted: `t` is `public.t`, and the ledger stores the shorter form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from logbus.errors import UserError

SCHEMA = "logbus"
STAGING_SCHEMA = "logbus_staging"  # tables of running attempts; everything in it may be dropped with its attempt
LEAF_SCHEMA = "logbus_leaf"  # partitions of target tables, kept out of the user's own schemas

WINDOW_COLUMNS = ("_topic", "_window_start")  # the same in all rows of a window: defaults of the table that they are staged in

# Where a row of a target comes from, in front of the parser's columns.
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

SCHEMA_DEFAULT = "public"

# A table of the user's in one of these would lie among those that logbus drops, or that the server makes.
RESERVED_SCHEMAS = (SCHEMA, STAGING_SCHEMA, LEAF_SCHEMA, "information_schema")
ODD_CHARACTERS = frozenset("\"'/\\\0")  # with which the same table could be spelled differently

# PostgreSQL silently truncates longer names, and two truncated names may be the same.
NAME_BYTES_MAX = 63

LEAF_SUFFIX_BYTES = len("_201505171000")
TABLE_BYTES_MAX = NAME_BYTES_MAX - LEAF_SUFFIX_BYTES


def identifier(name: str) -> str:
    """An SQL identifier, whatever characters it contains."""
    return '"' + name.replace('"', '""') + '"'


def quoted(name: str) -> str:
    """The identifier in a statement for SQLAlchemy's `text()`, which takes `:x` for a parameter even between quotes."""
    return '"' + name.replace('"', '""').replace(":", r"\:") + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A table in a schema. `sql` is how statements for `text()` name it; `identifier` is the same for everything that is no such
    statement: a parameter (`to_regclass(:name)`), a message."""

    name: str
    schema: str = SCHEMA_DEFAULT
    sql: str = field(init=False, repr=False, compare=False)
    identifier: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sql", f"{quoted(self.schema)}.{quoted(self.name)}")
        object.__setattr__(self, "identifier", self.sql.replace(r"\:", ":"))

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_table(text: str) -> TableName:
    """`access_log` or `web.access_log`."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise UserError(f"a table is named table or schema.table; got {text!r}")
    if "\0" in text or (len(parts) == 2 and parts[0].startswith("pg_")):
        raise UserError(f"no table can be named {text!r}: PostgreSQL has no NUL in names, and keeps schemas with a leading pg_")
    if len("_".join(parts).encode()) > TABLE_BYTES_MAX:
        raise UserError(f"the table name {text!r} is too long: its partitions' names must fit into {NAME_BYTES_MAX} bytes")
    return TableName(name=parts[-1], schema=parts[0]) if len(parts) > 1 else TableName(name=parts[0])


def check_target(text: str) -> TableName:
    """The table of that name. Raises `UserError` for one that no pipeline may be registered for."""
    target = parse_table(text)
    if target.schema in RESERVED_SCHEMAS:
        raise UserError(f"the table {text!r} is in {target.schema}, which is not for a load's rows: name another schema, or none")
    if odd := sorted({*text} & ODD_CHARACTERS):
        raise UserError(
            f"the table {text!r} has {' '.join(odd)} in its name; it is taken as it is written, upper and lower case included, "
            "so leave quotes and slashes out"
        )
    return target


def target_named_after(text: str) -> str:
    """A table's name for a topic or a file: the same if a table may have it, otherwise without what is in the way. Names that
    have to be cut end in a checksum, so that those of different topics stay different."""
    try:
        check_target(text)
    except UserError:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", text)
        checksum = f"_{crc32(text.encode()):08x}"
        return plain if 0 < len(plain) <= TABLE_BYTES_MAX else plain[: TABLE_BYTES_MAX - len(checksum)] + checksum
    return text


def by_arrival(view: str) -> TableName:
    """The table under the view of a stream: what arrived in which hour."""
    table = parse_table(view)
    return TableName(name=f"{table.name}_by_arrival", schema=table.schema)


def leaf_name(target: TableName, window_start: datetime) -> TableName:
    """The partition that holds one window of the target. With a dot, so that `web.log` and `web_log` get different ones."""
    base = target.name if target.schema == "public" else f"{target.schema}.{target.name}"
    return TableName(name=f"{base}_{window_start:%Y%m%d%H%M}", schema=LEAF_SCHEMA)


ATTEMPTS_REMEMBERED = 1_000  # about as many as one application loads


class AttemptTables(NamedTuple):
    """An attempt's own tables: those to which its tasks write, and the same after they were sealed, which renames them, so that
    later writes to the old names fail."""

    rows: TableName
    dead_letters: TableName
    sealed_rows: TableName
    sealed_dead_letters: TableName


@lru_cache(ATTEMPTS_REMEMBERED)  # each step of a load asks for them
def tables_of_attempt(staging_table: str) -> AttemptTables:
    names = (staging_table, f"{staging_table}_dead", f"{staging_table}_sealed", f"{staging_table}_dead_sealed")
    return AttemptTables(*(TableName(name=name, schema=STAGING_SCHEMA) for name in names))
