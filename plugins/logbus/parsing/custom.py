"""A user-defined parser: `parse="mypackage.mymodule:my_parser"`.

The function takes the pipeline's settings and returns a `Parser`. If the parser raises an exception for a value, that value is a
dead letter with the exception's name as error class. The module must be importable where the tasks run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser, Quick, Unparsable
from logbus.parsing.schemas import ARROW_TYPES


def custom_parser(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser that `module:function` makes for the settings."""
    parser = imported(name)(settings)
    if not isinstance(parser, Parser):
        raise UserError(f"{name} gave {type(parser).__name__}; a function that makes a parser gives logbus.parsing.Parser")
    unknown = sorted({kind for kind in parser.columns.values() if kind not in ARROW_TYPES})
    if unknown or any(column.startswith("_") for column in parser.columns):
        raise UserError(
            f"the columns of {name}: types are {', '.join(ARROW_TYPES)} and names do not begin with _; got {dict(parser.columns)}"
        )
    return replace(parser, parse=guarded(parser.parse), quick=None if parser.quick is None else guarded_quick(parser.quick))


def imported(name: str) -> Callable[[Mapping[str, Any]], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        found: Callable[[Mapping[str, Any]], Any] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the parser {name} cannot be imported: {error}") from None
    return found


def guarded(parse: Callable[[bytes], Sequence[Any]]) -> Callable[[bytes], Sequence[Any]]:
    """One value that the parser does not expect must not fail the window."""

    def guarded_parse(value: bytes) -> Sequence[Any]:
        try:
            return parse(value)
        except (Unparsable, Filtered):
            raise
        except Exception as error:
            raise Unparsable(type(error).__name__, str(error)) from error

    return guarded_parse


def guarded_quick(quick: Quick) -> Quick:
    """Values on which the quick path fails are parsed one by one."""

    def guarded_columns(values: Sequence[bytes]) -> Sequence[Any] | None:
        try:
            return quick(values)
        except Exception:
            return None

    return guarded_columns
