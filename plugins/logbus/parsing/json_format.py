"""JSON objects. A declared column holds the member of its name; without declared columns the whole object is one `data jsonb`.

Declared in the pipeline's settings: `{"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}`. `json_records`
says which values a member may have. With `{"infer": true}` columns are added as they appear in records (json_inference.py);
members without a column are kept in `_rest jsonb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logbus.parsing.base import Parser
from logbus.parsing.columns import declared_columns
from logbus.parsing.json_columns import quick_columns, quick_whole
from logbus.parsing.json_records import parse_members, parse_whole

WHOLE_OBJECT = "data"
REST = "_rest"


def json_parser(settings: Mapping[str, Any]) -> Parser:
    columns, infers = declared_columns(settings), bool(settings.get("infer"))
    if not columns and not infers:
        return Parser(columns={WHOLE_OBJECT: "jsonb"}, parse=parse_whole, quick=quick_whole)
    return Parser(
        columns={**columns, REST: "jsonb"} if infers else columns,
        parse=lambda value: parse_members(value, columns, with_rest=infers),
        quick=lambda values: quick_columns(values, columns, with_rest=infers),
    )
