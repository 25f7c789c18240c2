"""Lines of comma-separated values (RFC 4180), one record per line, with the fields in the order that the settings give.

    {"fields": ["time", "user", "amount"], "columns": {"time": "timestamptz", "amount": "double precision"}, "delimiter": ";"}

`fields` are the columns in the order of the line, text unless `columns` gives another type. An empty field is null. A header line
with the fields' names is filtered: counted, but not a dead letter. A quoted field cannot continue on the next line: a record is
one line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.errors import UserError
from logbus.parsing.base import Filtered, Parser, Unparsable, decode, shown
from logbus.parsing.columns import columns_named, from_text

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
    return Parser(columns=columns, parse=lambda value: parse_line(value, columns, delimiter))


def parse_line(value: bytes, columns: Mapping[str, str], delimiter: str) -> Sequence[Any]:
    text = decode(value).rstrip("\r\n")
    try:
        rows = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise Unparsable("NotCsv", f"{error}: {shown(text)}") from None
    row = rows[0] if rows else []
    if row == list(columns):
        raise Filtered
    if len(row) != len(columns):
        raise Unparsable("WrongNumberOfFields", f"{len(row)} fields, not {len(columns)}: {shown(text)}")
    return [from_text(name, kind, field or None) for (name, kind), field in zip(columns.items(), row, strict=True)]
