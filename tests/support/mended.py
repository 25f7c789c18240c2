"""A parser that was mended since: it reads as `lines` does, and makes a text of bytes that are none as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logbus.parsing import Parser

MENDED = "tests.support.mended:mended_lines"


def mended_lines(settings: Mapping[str, Any]) -> Parser:
    def parse(value: bytes) -> Sequence[Any]:
        return (value.decode(errors="backslashreplace"),)

    return Parser(columns={"line": "text"}, parse=parse)
