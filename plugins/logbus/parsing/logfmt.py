r"""logfmt: `at=2015-05-17T10:00:00Z level=info msg="started up" took=12ms debug`.

Pairs separated by spaces. A value with spaces is in double quotes, in which \" and \\ and \n, \t, \r are escapes; others stay
as written. A word without a value is true, but a line of nothing else is prose, not logfmt. A declared column holds the pair of
its name, of several the last; without declared columns all pairs are one `data jsonb` of strings, and of lists of strings where
a name occurs more than once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.parsing.base import Parser, Unparsable, decode, shown
from logbus.parsing.columns import declared_columns, from_text

WHOLE_LINE = "data"
TRUE = "true"

PAIR = re.compile(r'\s*([^\s="]+)(?:=(?:"((?:[^"\\]|\\.)*)"(?=\s|$)|([^\s"]*)(?=\s|$)))?', re.DOTALL)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def logfmt_parser(settings: Mapping[str, Any]) -> Parser:
    columns = declared_columns(settings)
    if not columns:
        return Parser(columns={WHOLE_LINE: "jsonb"}, parse=parse_whole)
    return Parser(columns=columns, parse=lambda value: to_row(dict(parse_pairs(value)), columns))


def to_row(found: Mapping[str, str], columns: Mapping[str, str]) -> Sequence[Any]:
    return [from_text(name, kind, found.get(name)) for name, kind in columns.items()]


def parse_whole(value: bytes) -> Sequence[Any]:
    pairs = parse_pairs(value)
    whole: dict[str, Any] = dict(pairs)
    if len(whole) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        whole |= {name: [text for other, text in pairs if other == name] for name, count in counts.items() if count > 1}
    return (json.dumps(whole, ensure_ascii=False),)


def parse_pairs(value: bytes) -> list[tuple[str, str]]:
    """The names and values of a line, in their order."""
    text = decode(value).rstrip()
    pairs: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        pair = PAIR.match(text, place)
        if pair is None or (pair.end() < len(text) and not text[pair.end()].isspace()):
            raise Unparsable("NotLogfmt", f"no pair of name=value at {place}: {shown(text[place:])}")
        pairs.append((pair[1], to_value(pair[2], pair[3])))
        place = pair.end()
    if "=" not in text:
        raise Unparsable("NotLogfmt", f"no pair of name=value: {shown(text)}")
    return pairs


def to_value(quoted: str | None, plain: str | None) -> str:
    if quoted is not None:
        return ESCAPE.sub(lambda escape: ESCAPED.get(escape[1], escape[0]), quoted) if "\\" in quoted else quoted
    return TRUE if plain is None else plain
