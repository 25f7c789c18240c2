"""Parsers: a record's value becomes a row, or a dead letter with the reason. Plain Python, independent of Spark.

`parser_for(name, settings)` chooses from a table. A parser declares its columns (name to PostgreSQL type) and turns
the bytes of one value into the values of those columns, in order; a value it cannot parse raises `Unparsable`, whose
`kind` is the dead letter's error class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser, Unparsable, filtering, parse_value, storable
from logbus.parsing.combined import combined_parser
from logbus.parsing.csv_lines import csv_parser
from logbus.parsing.custom import custom_parser
from logbus.parsing.expression import regex_parser
from logbus.parsing.json_format import json_parser
from logbus.parsing.logfmt import logfmt_parser
from logbus.parsing.nginx_json import nginx_json_parser
from logbus.parsing.plain import line_parser, raw_parser
from logbus.parsing.syslog import syslog_parser

PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Parser]] = {
    "combined": combined_parser,
    "csv": csv_parser,
    "json": json_parser,
    "lines": line_parser,
    "logfmt": logfmt_parser,
    "nginx_json": nginx_json_parser,
    "raw": raw_parser,
    "regex": regex_parser,
    "syslog": syslog_parser,
}


def parser_for(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser that a pipeline names, built for its settings: one of `PARSERS`, or the user's own `module:function`."""
    if name not in PARSERS and ":" not in name:
        raise UserError(f"no parser {name!r}; a pipeline parses as one of {', '.join(PARSERS)}, or by module:function")
    parser = PARSERS[name](settings) if name in PARSERS else custom_parser(name, settings)
    return filtering(parser, settings["filter"]) if settings.get("filter") else parser


__all__ = ["PARSERS", "Filtered", "Parser", "Unparsable", "parse_value", "parser_for", "storable"]
