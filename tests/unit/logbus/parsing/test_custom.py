"""The raw parser, users' own parsers, and the filter on any of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from logbus.errors import UserError
from logbus.parsing import Filtered, Parser, Unparsable, parse_value, parser_for
from logbus.parsing.batches import Parsed, parse_chunk, parser_schema


def length_parser(settings: Mapping[str, Any]) -> Parser:
    """A user's own parser."""
    return Parser(columns={"length": settings.get("kind", "integer")}, parse=parse_length)


def parse_length(value: bytes) -> Sequence[Any]:
    if not value:
        raise ZeroDivisionError("an empty value")
    return (len(value),)


def not_a_parser(settings: Mapping[str, Any]) -> str:
    return "nothing"


MINE = "tests.unit.logbus.parsing.test_custom"


def test_raw_keeps_every_byte_and_a_missing_value_as_null() -> None:
    values = [b"\xff\0", b"", None]
    parsed = parsed_by("raw", {}, values)
    assert parsed.rows["value"].to_pylist() == values
    assert not parsed.rejected


def test_a_parser_of_the_users_own_is_imported_by_its_name() -> None:
    parser = parser_for(f"{MINE}:length_parser", {})
    assert list(parser.parse(b"four")) == [4]


def test_whatever_the_users_own_parser_raises_makes_a_dead_letter() -> None:
    with pytest.raises(Unparsable, match="an empty value") as caught:
        parse_value(parser_for(f"{MINE}:length_parser", {}), b"")
    assert caught.value.kind == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("nowhere.at_all:parser", {}, "cannot be imported"),
        (f"{MINE}:nobody", {}, "cannot be imported"),
        (f"{MINE}:not_a_parser", {}, "returned str"),
        (f"{MINE}:length_parser", {"kind": "varchar"}, "varchar"),
    ],
)
def test_a_parser_that_cannot_be_had_is_refused(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parser_for(name, settings)


def test_the_filter_leaves_out_rows_of_other_values_and_keeps_dead_letters_dead() -> None:
    settings = {"columns": {"status": "integer", "host": "text"}, "filter": {"status": [500, 503], "host": ["a", None]}}
    parser = parser_for("json", settings)
    assert parser.parse(b'{"status": 503}') == [503, None]
    for other in (b'{"status": 200, "host": "a"}', b'{"status": 500, "host": "b"}'):
        with pytest.raises(Filtered):
            parser.parse(other)
    with pytest.raises(Unparsable):
        parser.parse(b'{"status": "500"}')


def careless_parser(settings: Mapping[str, Any]) -> Parser:
    """Returns values of any type, and fails on many values at once."""
    return Parser(
        columns={"size": "integer"}, parse=lambda value: (value.decode() if value == b"text" else len(value),), quick=fail
    )


def fail(values: Sequence[bytes]) -> None:
    raise RuntimeError("too many")


def test_values_that_are_not_of_their_columns_types_make_dead_letters_and_stop_nothing() -> None:
    parsed = parsed_by(f"{MINE}:careless_parser", {}, [b"four", b"text", b"sixsix"])
    assert parsed.rows["size"].to_pylist() == [4, 6]
    assert list(parsed.indexes) == [0, 2]
    assert [(index, error.kind) for index, error in parsed.rejected] == [(1, "WrongType")]


@pytest.mark.parametrize("wanted", [{"stranger": [1]}, {"line": "x"}, ["line"]])
def test_a_filter_over_no_column_is_refused(wanted: Any) -> None:
    with pytest.raises(UserError, match=r"settings\.filter"):
        parser_for("lines", {"filter": wanted})


def columns_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={settings["name"]: "text"}, parse=lambda value: (value.decode(),))


@pytest.mark.parametrize("name", ["xmin", "_mine", "a\0b", "", "n" * 64])
def test_a_column_that_no_table_can_have_is_refused(name: str) -> None:
    for parse, settings in (
        (f"{MINE}:columns_parser", {"name": name}),
        ("json", {"columns": {name: "text"}}),
        ("csv", {"fields": [name]}),
    ):
        with pytest.raises(UserError, match="a column's name has 1 to 63 bytes"):
            parser_for(parse, settings)


def json_parser(settings: Mapping[str, Any]) -> Parser:
    """Whatever is no JSON comes through both ways."""
    return Parser(
        columns={"data": "jsonb"},
        parse=lambda value: (value.decode() or None,),
        quick=lambda values: [pa.array([value.decode() or None for value in values])],
    )


def test_what_a_users_own_parser_returns_for_jsonb_is_json_or_a_dead_letter() -> None:
    values = [b'{"a": 1}', b"", b"{'a': 1}", b"NaN", rb'"\u0000"', b"[1e-99999]", b"[" * 2_000]
    parsed = parsed_by(f"{MINE}:json_parser", {}, values)
    assert parsed.rows["data"].to_pylist() == ['{"a": 1}', None, "[0.0]"]
    assert [(index, error.kind) for index, error in parsed.rejected] == [(index, "WrongType") for index in (2, 3, 4, 6)]
    assert parsed_by(f"{MINE}:json_parser", {}, values[:2]).rows["data"].to_pylist() == ['{"a": 1}', None]


def test_a_text_for_jsonb_keeps_all_its_digits() -> None:
    value = b'{"amount": 1.10, "exact": 0.12345678901234567890123, "whole": 123456789012345678901234567890}'
    for values in ([value], [value, b"{'a': 1}"]):  # quickly, and one by one
        assert parsed_by(f"{MINE}:json_parser", {}, values).rows["data"].to_pylist() == [value.decode()]
    line = b'1,"' + value.replace(b'"', b'""') + b'"'
    assert parser_for("csv", {"fields": ["n", "data"], "columns": {"data": "jsonb"}}).parse(line)[1] == value.decode()


def returning(settings: Mapping[str, Any]) -> Parser:
    """A parser whose row is in its settings, whatever the record."""
    return Parser(columns=settings["columns"], parse=lambda value: settings["row"])


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("integer", 2.0, 2),
        ("bigint", Decimal(3), 3),
        ("integer", -7, -7),
        ("double precision", 1, 1.0),
        ("timestamptz", datetime(2026, 11, 25, 12, tzinfo=UTC), datetime(2026, 11, 25, 12, tzinfo=UTC)),
        ("jsonb", "{}", "{}"),
        ("boolean", True, True),
    ],
)
def test_a_value_that_is_the_same_in_its_columns_type_is_stored(kind: str, value: Any, stored: Any) -> None:
    for given, expected in ((value, stored), (None, None)):
        parsed = parsed_row({"x": kind}, [given])
        assert parsed.rows["x"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        *(("integer", 1.5, "1.5 has a fraction"), ("bigint", Decimal("0.1"), "0.1 has a fraction")),
        *(("integer", Fraction(1, 3), "1/3 has a fraction"), ("integer", math.nan, "cannot hold nan")),
        *(("bigint", math.inf, "cannot hold inf"), ("bigint", Decimal("1E+999999999"), "cannot hold 1E")),
        *(("bigint", Decimal("1E+300"), "types"), ("bigint", 2**64, "types"), ("integer", True, "types")),
        *(("double precision", True, "not for True"), ("boolean", 1, "types"), ("text", 5, "types")),
        *(("timestamptz", number, "return a datetime") for number in (1_432_155_945, 1432155945.5)),
        *(("jsonb", value, "return a text of JSON") for value in ({"a": 1}, 5)),
    ],
)
def test_a_value_that_would_be_stored_as_another_one_is_a_dead_letter(kind: str, value: Any, says: str) -> None:
    parsed = parsed_row({"x": kind}, [value])
    assert parsed.rows.num_rows == 0
    [(_, error)] = parsed.rejected
    assert (error.kind, says in str(error)) == ("WrongType", True), str(error)


@pytest.mark.parametrize("row", [[], [1], [1, 2, 3]])
def test_a_row_of_another_length_is_a_dead_letter_that_counts_both(row: Sequence[Any]) -> None:
    [(_, error)] = parsed_row({"x": "integer", "y": "integer"}, row).rejected
    assert error.kind == "WrongType"
    assert re.fullmatch(r"the parser returned \d values?, but it has 2 columns", str(error))


def parsed_row(columns: Mapping[str, str], row: Sequence[Any]) -> Parsed:
    return parsed_by(f"{MINE}:returning", {"columns": columns, "row": row}, [b"a record"])


def parsed_by(name: str, settings: Mapping[str, Any], values: Sequence[bytes | None]) -> Parsed:
    parser = parser_for(name, settings)
    return parse_chunk(parser, parser_schema(parser.columns), values)
