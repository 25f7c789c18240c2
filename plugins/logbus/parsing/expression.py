"""Lines split into columns by a regular expression from the pipeline's settings.

    {"pattern": "(?P<level>\\\\w+) (?P<took>\\\\d+)ms (?P<message>.*)", "columns": {"took": "integer"}}

The pattern must match the whole line, without its line end. Its named groups are the columns, text unless `columns` gives
another type; a group that took no part in the match is null. Nothing limits a match's time: backtracking is up to the author.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Parser, Unparsable, decode, shown
from logbus.parsing.columns import columns_named, from_text


def regex_parser(settings: Mapping[str, Any]) -> Parser:
    pattern = compiled(settings.get("pattern"))
    columns = columns_named(pattern.groupindex, settings, "a named group of settings.pattern")
    return Parser(columns=columns, parse=lambda value: parse_line(value, pattern, columns))


def compiled(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise UserError('the parser "regex" needs settings.pattern: a regular expression with named groups, (?P<name>...)')
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UserError(f"settings.pattern is not a regular expression: {error}") from None
    if not found.groupindex:
        raise UserError("settings.pattern has no named groups, (?P<name>...): they become the columns")
    return found


def parse_line(value: bytes, pattern: re.Pattern[str], columns: Mapping[str, str]) -> Sequence[Any]:
    text = decode(value).rstrip("\r\n")
    match = pattern.fullmatch(text)
    if match is None:
        raise Unparsable("NoMatch", f"the pattern does not match {shown(text)}")
    groups = match.groupdict()
    return [from_text(name, kind, groups[name]) for name, kind in columns.items()]
