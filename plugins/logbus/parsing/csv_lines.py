"""Lines of comma-separated values (RFC 4180), one record per line, with the fields in the order that the settings give.

    {"fields": ["time", "user", "amount"], "columns": {"time": "timestamptz", "amount": "double precision"}, "delimiter": ";"}

`fields` are the columns in the order of the line, text unless `columns` gives another type. An empty field is null, and so is one
that holds `null_value`. A header line with the fields' names, capitals and punctuation aside, is filtered: counted, but not a
dead letter; so is a line that begins with `comment`. A quoted field cannot continue on the next line: a record is one line.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser, Unparsable, decode, shown
from logbus.parsing.columns import column_names, columns_named, from_text

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
