"""A record's value as it is: a line of text, or bytes, which are null if the record has no value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from logbus.parsing.base import Parser, decode


def raw_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={"value": "bytea"}, parse=lambda value: (value,), quick=quick, of_no_value=(None,))


def quick(values: Sequence[bytes]) -> Sequence[pa.Array]:
    return [pa.array(values, pa.binary())]


def line_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={"line": "text"}, parse=lambda value: (decode(value),))
