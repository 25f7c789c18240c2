"""Names in SQL: a target table, its leaves, an attempt's staging tables."""

from __future__ import annotations

from datetime import datetime

from logbus.ledger.places import LEAF_SCHEMA, STAGING_SCHEMA
from logbus.ledger.table_names import TableName, parse_table, quoted
from logbus.model import utc


def leaf_name(target: TableName, window_start: datetime) -> TableName:
    """The partition that holds one window of the target. With a dot, so that `web.log` and `web_log` do not want the same one."""
    base = target.name if target.schema == "public" else f"{target.schema}.{target.name}"
    return TableName(name=f"{base}_{utc(window_start):%Y%m%d%H%M}", schema=LEAF_SCHEMA)


def staging(name: str) -> TableName:
    return TableName(name=name, schema=STAGING_SCHEMA)


__all__ = ["TableName", "leaf_name", "parse_table", "quoted", "staging"]
