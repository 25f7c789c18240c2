"""A parser improved after the load: it parses like `lines`, but also turns bytes that are not text into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logbus.parsing import Parser

MENDED = "tests.support.mended:mended_lines"


def mended_lines(settings: Mapping[str, Any]) -> Parser:
    def parse(value: bytes) -> Sequence[Any]:
        return (value.decode(errors="backslashreplace"),)

    return Parser(columns={"line": "text"}, parse=parse)
