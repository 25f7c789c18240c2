r"""Parsers of lines whose fields the user describes: as they are (`raw`), `regex`, `csv` and `logfmt`.

regex: {"pattern": "(?P<level>\\w+) (?P<took>\\d+)ms (?P<message>.*)", "columns": {"took": "integer"}}. The pattern must match the
whole line, without its line end. Its named groups are the columns, text unless `columns` gives another type; a group that took no
part in the match is null. Nothing limits a match's time: backtracking is up to the author.

csv (RFC 4180): {"fields": ["time", "user"], "columns": {"time": "timestamptz"}, "delimiter": ";"}. `fields` are the columns in
the order of the line, text unless `columns` gives another type. An empty field is null, and so is one that holds `null_value`. A
header line with the fields' names, capitals and punctuation aside, is filtered: counted, but not a dead letter; so is a line that
begins with `comment`. A quoted field cannot continue on the next line: a record is one line.

logfmt: `at=2015-05-17T10:00:00Z level=info msg="started up" debug`. A value with spaces is in double quotes, in which \" and \\
and \n, \t, \r are escapes; others stay as written. A word without a value is true, but a line of nothing else is prose, not
logfmt. A declared column holds the pair of its name, of several the last; without declared columns all pairs are one `data jsonb`
of strings, and of lists of strings where a name occurs more than once.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from logbus.errors import UserError
from logbus.parsing import Filtered, Parser, Unparsable, decode, shown
from logbus.parsing.columns import column_names, columns_named, declared_columns, from_text


def raw_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(
        columns={"value": "bytea"},
        parse=lambda value: (value,),
        quick=lambda values: [pa.array(values, pa.binary())],
        of_no_value=(None,),
    )


def regex_parser(settings: Mapping[str, Any]) -> Parser:
    pattern = _compiled_pattern(settings.get("pattern"))
    columns = columns_named(pattern.groupindex, settings, "a named group of settings.pattern")
    return Parser(columns=columns, parse=lambda value: _parse_by_pattern(value, pattern, columns))


def _compiled_pattern(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise UserError('the parser "regex" needs settings.pattern: a regular expression with named groups, (?P<name>...)')
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"settings.pattern is not a regular expression: {error}") from None
    if not expression.groupindex:
        raise UserError("settings.pattern has no named groups, (?P<name>...): they become the columns")
    return expression


def _parse_by_pattern(value: bytes, pattern: re.Pattern[str], columns: Mapping[str, str]) -> Sequence[Any]:
    text = decode(value).rstrip("\r\n")
    match = pattern.fullmatch(text)
    if match is None:
        raise Unparsable("NoMatch", f"the pattern does not match {shown(text)}")
    groups = match.groupdict()
    return [from_text(name, kind, groups[name]) for name, kind in columns.items()]


# A field may be as long as a record: Kafka counts a batch's bytes in 32 bits. The module's own limit of 131,072 characters would
# make dead letters of valid lines; it is one for the whole process.
FIELD_CHARACTERS_MAX = 2**31 - 1
csv.field_size_limit(FIELD_CHARACTERS_MAX)


def csv_parser(settings: Mapping[str, Any]) -> Parser:
    fields, delimiter = settings.get("fields"), settings.get("delimiter") or ","
    if not isinstance(fields, list | tuple) or not fields or len({*fields}) < len(fields):
        raise UserError('the parser "csv" needs settings.fields: the names of a line\'s fields, in their order, each once')
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise UserError(f"settings.delimiter is one character, such as ; or a tab; got {delimiter!r}")
    columns = columns_named(fields, settings, "among settings.fields")
    line = CsvLine(
        columns=columns,
        header=column_names(fields),
        delimiter=delimiter,
        comment=settings.get("comment"),
        nulls=frozenset({"", settings.get("null_value") or ""}),
    )
    return Parser(columns=columns, parse=line.parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLine:
    """How a line is read. `header`: the fields as `column_names` writes them."""

    columns: Mapping[str, str]
    header: Sequence[str]
    delimiter: str
    comment: str | None
    nulls: Collection[str]

    def parse(self, value: bytes) -> Sequence[Any]:
        text = decode(value).rstrip("\r\n")
        if self.comment and text.startswith(self.comment):
            raise Filtered
        try:
            rows = list(csv.reader([text], delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise Unparsable("NotCsv", f"{error}: {shown(text)}") from None
        row = rows[0] if rows else []
        if len(row) != len(self.columns):
            raise Unparsable("WrongNumberOfFields", f"{len(row)} fields, not {len(self.columns)}: {shown(text)}")
        if self.is_header(row):
            raise Filtered
        fields = zip(self.columns.items(), row, strict=True)
        return [from_text(name, kind, None if field in self.nulls else field) for (name, kind), field in fields]

    def is_header(self, row: Sequence[str]) -> bool:
        first = row[0][:1]
        if first.isalnum() and first.casefold()[0] != self.header[0][0]:  # nearly every row
            return False
        return column_names(row[:1]) == self.header[:1] and column_names(row) == self.header


WHOLE_LINE = "data"
TRUE = "true"

PAIR = re.compile(r'\s*([^\s="]+)(?:=(?:"((?:[^"\\]|\\.)*)"(?=\s|$)|([^\s"]*)(?=\s|$)))?', re.DOTALL)
ESCAPED_CHARACTER = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def logfmt_parser(settings: Mapping[str, Any]) -> Parser:
    columns = declared_columns(settings)
    if not columns:
        return Parser(columns={WHOLE_LINE: "jsonb"}, parse=_parse_whole_line)

    def parse(value: bytes) -> Sequence[Any]:
        pairs = dict(_parse_pairs(value))
        return [from_text(name, kind, pairs.get(name)) for name, kind in columns.items()]

    return Parser(columns=columns, parse=parse)


def _parse_whole_line(value: bytes) -> Sequence[Any]:
    pairs = _parse_pairs(value)
    whole: dict[str, Any] = dict(pairs)
    if len(whole) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        whole |= {name: [text for other, text in pairs if other == name] for name, count in counts.items() if count > 1}
    return (json.dumps(whole, ensure_ascii=False),)


def _parse_pairs(value: bytes) -> list[tuple[str, str]]:
    """The names and values of a line, in their order."""
    text = decode(value).rstrip()
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        pair = PAIR.match(text, position)
        if pair is None or (pair.end() < len(text) and not text[pair.end()].isspace()):
            raise Unparsable("NotLogfmt", f"no pair of name=value at {position}: {shown(text[position:])}")
        pairs.append((pair[1], _to_value(pair[2], pair[3])))
        position = pair.end()
    if "=" not in text:
        raise Unparsable("NotLogfmt", f"no pair of name=value: {shown(text)}")
    return pairs


def _to_value(quoted: str | None, plain: str | None) -> str:
    if quoted is not None:
        return ESCAPED_CHARACTER.sub(lambda escape: ESCAPED.get(escape[1], escape[0]), quoted) if "\\" in quoted else quoted
    return TRUE if plain is None else plain
