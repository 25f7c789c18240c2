"""Leaving records out on purpose: `{"filter": {"status": [500, 503], "host": ["web-1"]}}`.

A row is loaded if each of these columns holds one of its values; null may be one of them. The others are counted as filtered:
read = loaded + dead-lettered + filtered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser


def filtering(parser: Parser, wanted: Mapping[str, Sequence[Any]]) -> Parser:
    """The parser with its rows filtered."""
    names = list(parser.columns)
    if not isinstance(wanted, Mapping) or any(name not in names or not isinstance(wanted[name], list) for name in wanted):
        raise UserError(f"settings.filter maps columns to lists of values; the columns are {', '.join(names)}")
    places = [(names.index(name), tuple(values)) for name, values in wanted.items()]

    def parse(value: bytes) -> Sequence[Any]:
        row = parser.parse(value)
        if all(row[place] in values for place, values in places):
            return row
        raise Filtered

    return replace(parser, parse=parse, quick=None)
