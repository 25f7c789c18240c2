"""A user-defined parser: `parse="mypackage.mymodule:my_parser"`.

The function takes the pipeline's settings and returns a `Parser`. Nothing that the parser raises or returns for a value may stop
a window. An exception makes a dead letter with its name as error class (`parse_value`), and so does a row that no sink can store,
or that would be stored as something else. What Arrow would convert without an error is checked here, everything else by Arrow
itself in `chunks`. The module must be importable where the tasks run.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from numbers import Real
from typing import Any

import pyarrow as pa

from logbus.errors import UserError
from logbus.formatting import many
from logbus.parsing import Parser, Quick, Unparsable, shown
from logbus.parsing.batches import ARROW_TYPES, from_text
from logbus.parsing.json_records import stored_json
from logbus.pipeline_settings import COLUMN_NAMES, is_column_name


def custom_parser(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser that `module:function` makes for the settings."""
    module_name, _, attribute = name.partition(":")
    try:
        make: Callable[[Mapping[str, Any]], Any] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the parser {name} cannot be imported: {error}") from None
    parser = make(settings)
    if not isinstance(parser, Parser):
        raise UserError(
            f"{name} returned {type(parser).__name__}; a function that makes a parser returns a logbus.parsing.Parser"
        )
    unknown = sorted({kind for kind in parser.columns.values() if kind not in ARROW_TYPES})
    if unknown or not all(map(is_column_name, parser.columns)):
        raise UserError(
            f"the columns of {name}: types are {', '.join(ARROW_TYPES)}, and {COLUMN_NAMES}; got {dict(parser.columns)}"
        )
    quick = None if parser.quick is None else _checked_quick(parser.quick, parser.columns)
    return replace(parser, parse=_checked(parser.parse, parser.columns), quick=quick)


def _checked(parse: Callable[[bytes], Sequence[Any]], columns: Mapping[str, str]) -> Callable[[bytes], Sequence[Any]]:
    """The same, with a value for each column that is stored as it is."""
    checks = [(index, name, CHECKS[kind]) for index, (name, kind) in enumerate(columns.items()) if kind in CHECKS]

    def checked_parse(value: bytes) -> Sequence[Any]:
        row = list(parse(value))
        if len(row) != len(columns):
            raise Unparsable(
                "WrongType", f"the parser returned {many(len(row), 'value')}, but it has {many(len(columns), 'column')}"
            )
        for index, name, check in checks:
            if row[index] is not None:
                row[index] = check(name, row[index])
        return row

    return checked_parse


def _whole(name: str, value: Any) -> Any:
    """Arrow cuts the fraction off, and of the Decimal 1E+999999999 it would first write out all digits."""
    if not isinstance(value, int) and isinstance(value, Real | Decimal):
        if not math.isfinite(value):  # nor is a Decimal beyond all floats
            raise Unparsable("WrongType", f"{name} is an integer column, which cannot hold {value}")
        if value != math.trunc(value):
            raise Unparsable("WrongType", f"{name} is an integer column, and {value} has a fraction")
    return value


def number(name: str, value: Any) -> Any:
    """For Arrow, true is 1.0; PostgreSQL has no number for it."""
    if isinstance(value, bool):
        raise Unparsable("WrongType", f"{name} is a column of numbers, not for {value}")
    return value


def _instant(name: str, value: Any) -> Any:
    """Arrow takes a number for microseconds since 1970, whatever it counts."""
    if isinstance(value, Real | Decimal):
        raise Unparsable("WrongType", f"{name} is a timestamptz column: return a datetime for it, not the number {value}")
    return value


def _day(name: str, value: Any) -> Any:
    """Arrow takes a number for days since 1970, and of an instant the date in whatever zone it is."""
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unparsable("WrongType", f"{name} is a date column: return a datetime.date for it, not {shown(str(value))}")
    return value


def _json_text(name: str, value: Any) -> Any:
    """PostgreSQL refuses what is not JSON, and with it all rows of its window."""
    if not isinstance(value, str):
        raise Unparsable("WrongType", f"{name} is a jsonb column: return a text of JSON for it, not {shown(str(value))}")
    return from_text(name, "jsonb", value)


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "integer": _whole,
    "bigint": _whole,
    "double precision": number,
    "timestamptz": _instant,
    "date": _day,
    "jsonb": _json_text,
}


def _checked_quick(quick: Quick, columns: Mapping[str, str]) -> Quick:
    """Values for which the quick path returns what is not JSON are parsed one by one. Its columns are Arrow's already, so nothing
    is converted: those of another type are parsed one by one, too."""
    json_indexes = [index for index, kind in enumerate(columns.values()) if kind == "jsonb"]

    def checked_columns(values: Sequence[bytes]) -> Sequence[Any] | None:
        arrays = quick(values)
        if arrays is None or not json_indexes:
            return arrays
        arrays = list(arrays)
        for index in json_indexes:
            texts = arrays[index].to_pylist()
            arrays[index] = pa.array([None if text is None else stored_json(text) for text in texts], pa.string())
        return arrays

    return checked_columns
