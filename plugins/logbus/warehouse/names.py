"""Names in SQL: quoted, and a target table's parts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from logbus.errors import UserError
from logbus.windows.model import utc
from logbus.windows.places import LEAF_SCHEMA, STAGING_SCHEMA

# PostgreSQL cuts longer names silently, and two cut names may be the same.
NAME_BYTES_MAX = 63

LEAF_SUFFIX_BYTES = len("_201505171000")


def quoted(name: str) -> str:
    """An identifier as SQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A table in a schema; `sql` is how statements name it."""

    name: str
    schema: str = "public"

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_table(text: str) -> TableName:
    """`access_log` or `web.access_log`."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise UserError(f"a table is named table or schema.table; {text!r} is neither")
    if len("_".join(parts).encode()) + LEAF_SUFFIX_BYTES > NAME_BYTES_MAX:
        raise UserError(f"the table name {text!r} is too long: its partitions' names must fit into {NAME_BYTES_MAX} bytes")
    return TableName(name=parts[-1], schema=parts[0]) if len(parts) > 1 else TableName(name=parts[0])


def leaf_name(target: TableName, window_start: datetime) -> TableName:
    """The partition that holds one window of the target. With a dot, so that `web.log` and `web_log` do not want the same one."""
    base = target.name if target.schema == "public" else f"{target.schema}.{target.name}"
    return TableName(name=f"{base}_{utc(window_start):%Y%m%d%H%M}", schema=LEAF_SCHEMA)


def staging(name: str) -> TableName:
    return TableName(name=name, schema=STAGING_SCHEMA)
