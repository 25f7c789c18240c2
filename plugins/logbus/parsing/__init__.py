"""Parsers: a record's value becomes a row, or a dead letter with the reason; values that name a schema are decoded by it. Plain
Python, independent of Spark.

`parser_for(name, settings)` chooses from a table. A parser declares its columns (name to PostgreSQL type) and turns
the bytes of one value into the values of those columns, in order; a value it cannot parse raises `Unparsable`, whose
`kind` is the dead letter's error class. What all parsers share is here as well: decoding text that PostgreSQL can store,
and filtering rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from logbus.errors import LogbusError, UserError
from logbus.parsing.decoders import Decoders, SchemaBook

# How much of the offending text an error message quotes; the dead letter keeps all the bytes anyway.
SHOWN_CHARACTERS_MAX = 120


class Unparsable(ValueError):
    """A value that the parser cannot read. `kind` groups dead letters; the message says what is wrong."""

    def __init__(self, kind: str, message: str) -> None:
        # Both are stored. A user's parser may take either from the record itself.
        super().__init__(storable(str(message)))
        self.kind = storable(str(kind))


class Filtered(Exception):
    """A value that a parser leaves out on purpose: it is counted, but neither loaded nor a dead letter."""


# Many values as Arrow columns in the order of `columns`; None where at least one of them must be parsed individually.
Quick = Callable[[Sequence[bytes]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """`columns` maps name to PostgreSQL type; `parse` returns their values in that order, or raises `Unparsable` or `Filtered`.

    `quick`, if set, returns the same for many values at once, provided all of them parse. `of_no_value` is the row of a
    record without a value (a tombstone); if it is None, such a record is a dead letter. `decoders`: of values that name their
    schema, which a record may have in a header (`logbus.parsing.decoders`).
    """

    columns: Mapping[str, str]
    parse: Callable[[bytes], Sequence[Any]]
    quick: Quick | None = None
    of_no_value: Sequence[Any] | None = None
    decoders: Decoders | None = None


def parse_value(parser: Parser, value: bytes | None) -> Sequence[Any]:
    """The row of one record, whose value may be absent. A value that the parser does not expect must not fail the window: any
    other exception makes a dead letter too, with its name."""
    if value is None:
        if parser.of_no_value is None:
            raise Unparsable("NoValue", "the record has no value (a tombstone)")
        return parser.of_no_value
    try:
        return parser.parse(value)
    # The last two are the machine's fault, or a server's: the next attempt may well parse the record.
    except (Unparsable, Filtered, MemoryError, LogbusError):
        raise
    except Exception as error:
        raise Unparsable(type(error).__name__, str(error)) from error


def decode(value: bytes) -> str:
    """The value as text. PostgreSQL stores only UTF-8 without NUL."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unparsable("NotUtf8", f"byte {error.start} is not UTF-8 ({error.reason})") from None
    if "\0" in text:
        raise Unparsable("NulCharacter", f"a NUL character at {text.index(chr(0))}, which PostgreSQL's text cannot hold")
    return text


def line_parser(settings: Mapping[str, Any]) -> Parser:
    """The parser `lines`: one column with the text."""
    return Parser(columns={"line": "text"}, parse=lambda value: (decode(value),))


def storable(text: str) -> str:
    """Any text, escaped where PostgreSQL could not store it."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def null(field: str | None) -> str | None:
    """A field of a log line; `-` stands for no value."""
    return None if field == "-" else field


def shown(text: str) -> str:
    """The beginning of the text, for an error message."""
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "...")


# Leaving records out on purpose: `{"filter": {"status": [500, 503], "host": ["web-1"]}}`.
#
# A row is loaded if each of these columns has one of the listed values, which may include null. Other rows are counted as
# filtered: read = loaded + dead-lettered + filtered.


def filtering(parser: Parser, accepted: Mapping[str, Sequence[Any]]) -> Parser:
    """The parser with a filter on its rows."""
    names = list(parser.columns)
    if not isinstance(accepted, Mapping) or any(name not in names or not isinstance(accepted[name], list) for name in accepted):
        raise UserError(f"settings.filter maps columns to lists of values; the columns are {', '.join(names)}")
    filters = [(names.index(name), tuple(values)) for name, values in accepted.items()]

    def parse(value: bytes) -> Sequence[Any]:
        row = parser.parse(value)
        if all(row[index] in values for index, values in filters):
            return row
        raise Filtered

    return replace(parser, parse=parse, quick=None)


# Module and function by name, imported when a parser is made: most of them need Arrow, and importing that takes as much CPU as
# all the rest of `logbus ship`, which reads times with this package and parses nothing.
PARSERS: Mapping[str, str] = {
    "combined": "logbus.parsing.text_lines:combined_parser",
    "csv": "logbus.parsing.text_lines:csv_parser",
    "json": "logbus.parsing.json_format:json_parser",
    "lines": "logbus.parsing:line_parser",
    "logfmt": "logbus.parsing.text_lines:logfmt_parser",
    "nginx_json": "logbus.parsing.text_lines:nginx_json_parser",
    "raw": "logbus.parsing.text_lines:raw_parser",
    "regex": "logbus.parsing.text_lines:regex_parser",
    "syslog": "logbus.parsing.text_lines:syslog_parser",
}

# The same for parsers whose values name a schema: they get those that are known as well.
SCHEMA_PARSERS: Mapping[str, str] = {
    "avro": "logbus.parsing.schema_format:avro_parser",
    "json_schema": "logbus.parsing.schema_format:json_schema_parser",
    "protobuf": "logbus.parsing.schema_format:protobuf_parser",
}


def parser_for(name: str, settings: Mapping[str, Any], book: SchemaBook | None = None) -> Parser:
    """The parser that a pipeline names, built for its settings: one of `PARSERS`, one of `SCHEMA_PARSERS` with the schemas of
    `book`, or the user's own `module:function`."""
    names = sorted([*PARSERS, *SCHEMA_PARSERS])
    if name not in names and ":" not in name:
        raise UserError(f"no parser {name!r}; a pipeline parses as one of {', '.join(names)}, or by module:function")
    if name in SCHEMA_PARSERS:
        parser = resolve_name(SCHEMA_PARSERS[name])(settings, book or SchemaBook())
    elif name in PARSERS:
        make: Callable[[Mapping[str, Any]], Parser] = resolve_name(PARSERS[name])
        parser = make(settings)
    else:
        from logbus.parsing.custom import custom_parser

        parser = custom_parser(name, settings)
    return filtering(parser, settings["filter"]) if settings.get("filter") else parser
