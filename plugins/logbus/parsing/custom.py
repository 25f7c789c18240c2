"""A user-defined parser: `parse="mypackage.mymodule:my_parser"`.

The function takes the pipeline's settings and returns a `Parser`. Nothing that the parser raises or returns for a value may stop
a window. An exception makes a dead letter with its name as error class (`parse_value`), and so does a row that no sink can store:
JSON is checked here, the other types in `chunks`. The module must be importable where the tasks run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from logbus.errors import UserError
from logbus.parsing.base import Parser, Quick
from logbus.parsing.columns import from_text
from logbus.parsing.json_records import stored_json
from logbus.parsing.schemas import ARROW_TYPES
from logbus.pipeline_settings import COLUMN_NAMES, is_column_name


def custom_parser(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser that `module:function` makes for the settings."""
    parser = imported(name)(settings)
    if not isinstance(parser, Parser):
        raise UserError(f"{name} gave {type(parser).__name__}; a function that makes a parser gives logbus.parsing.Parser")
    unknown = sorted({kind for kind in parser.columns.values() if kind not in ARROW_TYPES})
    if unknown or not all(map(is_column_name, parser.columns)):
        raise UserError(
            f"the columns of {name}: types are {', '.join(ARROW_TYPES)}, and {COLUMN_NAMES}; got {dict(parser.columns)}"
        )
    quick = None if parser.quick is None else checked_quick(parser.quick, parser.columns)
    return replace(parser, parse=checked(parser.parse, parser.columns), quick=quick)


def imported(name: str) -> Callable[[Mapping[str, Any]], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        found: Callable[[Mapping[str, Any]], Any] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the parser {name} cannot be imported: {error}") from None
    return found


def checked(parse: Callable[[bytes], Sequence[Any]], columns: Mapping[str, str]) -> Callable[[bytes], Sequence[Any]]:
    """The same with all `jsonb` as PostgreSQL takes it: a single text that is not JSON would fail the window."""
    json_places = [(place, name) for place, (name, kind) in enumerate(columns.items()) if kind == "jsonb"]
    if not json_places:
        return parse

    def checked_parse(value: bytes) -> Sequence[Any]:
        row = list(parse(value))
        for place, name in json_places:
            row[place] = from_text(name, "jsonb", row[place])
        return row

    return checked_parse


def checked_quick(quick: Quick, columns: Mapping[str, str]) -> Quick:
    """Values for which the quick path returns what is not JSON are parsed one by one."""
    json_places = [place for place, kind in enumerate(columns.values()) if kind == "jsonb"]

    def checked_columns(values: Sequence[bytes]) -> Sequence[Any] | None:
        found = quick(values)
        if found is None or not json_places:
            return found
        arrays = list(found)
        for place in json_places:
            texts = arrays[place].to_pylist()
            arrays[place] = pa.array([None if text is None else stored_json(text) for text in texts], pa.string())
        return arrays

    return checked_columns
