"""A record is a line of text, kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logbus.parsing.base import Parser, decode


def line_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={"line": "text"}, parse=lambda value: (decode(value),))
