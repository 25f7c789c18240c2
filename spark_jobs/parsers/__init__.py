"""Parsers: a record's value becomes a row, or a dead letter with the reason. Plain Python; Spark is not known here.

`parser_for(name, settings)` chooses from a table. A parser declares its columns (name to PostgreSQL type) and turns
the bytes of one value into the values of those columns, in order; what it cannot parse raises `Unparsable`, whose
`kind` is the dead letter's error class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logbus.errors import UserError

from spark_jobs.parsers.base import Filtered, Parser, Unparsable
from spark_jobs.parsers.combined import combined_parser
from spark_jobs.parsers.json_format import json_parser
from spark_jobs.parsers.lines import line_parser

PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Parser]] = {
    "combined": combined_parser,
    "json": json_parser,
    "lines": line_parser,
}


def parser_for(name: str, settings: Mapping[str, Any]) -> Parser:
    """The parser a pipeline asks for, built for its settings."""
    if name not in PARSERS:
        raise UserError(f"no parser {name!r}; a pipeline parses as one of {', '.join(PARSERS)}")
    return PARSERS[name](settings)


__all__ = ["PARSERS", "Filtered", "Parser", "Unparsable", "parser_for"]
