"""JSON objects. With declared columns each gets its member of that name; otherwise the object is one `data jsonb`.

Declared in the pipeline's settings: `{"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}`. What a member
may be is said in `json_records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logbus.errors import UserError

from spark_jobs.parsers.base import Parser
from spark_jobs.parsers.json_columns import quick_columns, quick_whole
from spark_jobs.parsers.json_records import CONVERTERS, parse_members, parse_whole

WHOLE_OBJECT = "data"


def json_parser(settings: Mapping[str, Any]) -> Parser:
    columns: Mapping[str, str] = settings.get("columns") or {}
    if not columns:
        return Parser(columns={WHOLE_OBJECT: "jsonb"}, parse=parse_whole, quick=quick_whole)
    unknown = {kind for kind in columns.values() if kind not in CONVERTERS}
    reserved = [name for name in columns if name.startswith("_")]
    if unknown or reserved:
        raise UserError(
            f"settings.columns: types are {', '.join(CONVERTERS)} and names do not begin with _ (logbus's own do); "
            f"got {', '.join([*sorted(unknown), *reserved])}"
        )
    return Parser(
        columns=dict(columns),
        parse=lambda value: parse_members(value, columns),
        quick=lambda values: quick_columns(values, columns),
    )
