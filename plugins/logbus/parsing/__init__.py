"""Parsers: a record's value becomes a row, or a dead letter with the reason. Plain Python, independent of Spark.

`parser_for(name, settings)` chooses from a table. A parser declares its columns (name to PostgreSQL type) and turns
the bytes of one value into the values of those columns, in order; a value it cannot parse raises `Unparsable`, whose
`kind` is the dead letter's error class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser, Unparsable, filtering, parse_value, storable

# Module and function by name, imported when a parser is made: most of them need Arrow, and importing that takes as much CPU as
# all the rest of `logbus ship`, which reads times with this package and parses nothing.
PARSERS: Mapping[str, str] = {
    "combined": "access_logs:combined_parser",
    "csv": "text_lines:csv_parser",
    "json": "json_format:json_parser",
    "lines": "text_lines:line_parser",
    "logfmt": "text_lines:logfmt_parser",
    "nginx_json": "access_logs:nginx_json_parser",
    "raw": "text_lines:raw_parser",
    "regex": "text_lines:regex_parser",
    "syslog": "syslog:syslog_parser",
}


def parser_for(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser that a pipeline names, built for its settings: one of `PARSERS`, or the user's own `module:function`."""
    if name not in PARSERS and ":" not in name:
        raise UserError(f"no parser {name!r}; a pipeline parses as one of {', '.join(PARSERS)}, or by module:function")
    if name in PARSERS:
        module_name, _, function = PARSERS[name].partition(":")
        make: Callable[[Mapping[str, Any]], Parser] = getattr(import_module(f"logbus.parsing.{module_name}"), function)
        parser = make(settings)
    else:
        from logbus.parsing.custom import custom_parser

        parser = custom_parser(name, settings)
    return filtering(parser, settings["filter"]) if settings.get("filter") else parser


__all__ = ["PARSERS", "Filtered", "Parser", "Unparsable", "parse_value", "parser_for", "storable"]
