"""JSON objects as columns, many at once, and inferred columns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logbus.parsing import Parser, parser_for
from logbus.parsing.batches import parse_chunk, parser_schema
from logbus.parsing.json_format import inferred_columns

from tests.support.examples import examples

COLUMNS = {
    "host": "text",
    "status": "integer",
    "size": "bigint",
    "seconds": "double precision",
    "ok": "boolean",
    "at": "timestamptz",
    "more": "jsonb",
}
DECLARED = parser_for("json", {"columns": COLUMNS})
WHOLE = parser_for("json", {})
INFERRING = parser_for("json", {"columns": {"host": "text", "status": "bigint"}, "infer": True})

INTEGERS = st.integers() | st.sampled_from([2**31, 2**63, 2**64, 10**23, 99_999_999_999, 100_000_000_000, -(10**14)])
STAMPS = st.datetimes().map(lambda at: at.isoformat() + "Z") | st.sampled_from(
    [
        *("2015-05-17", "2015-05-17T10:00:00", "2015-05-17T10:00:00.1234567Z", "0001-01-01T00:00:00+10:00"),
        *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-10:00", "2015-05-17T24:00:00Z"),
    ]
)
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "host": st.text(),
    "status": INTEGERS,
    "size": INTEGERS,
    "seconds": st.floats(allow_nan=False) | INTEGERS,
    "ok": st.booleans(),
    "at": STAMPS | INTEGERS | st.floats(allow_nan=False, allow_infinity=False),
    "more": st.recursive(st.none() | INTEGERS | st.floats(allow_nan=False) | st.text(), st.lists),
}
ANYTHING = st.none() | st.booleans() | INTEGERS | st.text() | st.lists(st.integers())
RIGHT = st.fixed_dictionaries({}, optional=MEMBERS)
WRONG = st.dictionaries(st.sampled_from(list(COLUMNS)), ANYTHING)


def alone(parser: Parser, values: list[bytes]) -> list[tuple[Any, ...]] | None:
    """The rows parsed one by one, as Arrow stores them; None if one is refused."""
    parsed = parse_chunk(replace(parser, quick=None), parser_schema(parser.columns), values)
    return None if parsed.rejected else list(zip(*(column.to_pylist() for column in parsed.rows.columns), strict=True))


def quickly(parser: Parser, values: list[bytes]) -> list[tuple[Any, ...]] | None:
    assert parser.quick is not None
    arrays = parser.quick(values)
    if arrays is None:
        return None
    batch = pa.RecordBatch.from_arrays(arrays, schema=parser_schema(parser.columns))  # rejects an array of another type
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@settings(max_examples=examples(60))
@given(st.lists(RIGHT, min_size=1, max_size=6) | st.lists(RIGHT | WRONG, min_size=1, max_size=6))
def test_many_at_once_are_what_each_is_alone(rows: list[dict[str, Any]]) -> None:
    values = [json.dumps(row).encode() for row in rows]
    for parser in (DECLARED, WHOLE, INFERRING):
        quick = quickly(parser, values)
        if quick is not None:
            assert quick == alone(parser, values)


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b"{}", b'{"host":"h"}', b'{"host":"\\u0000"}', b"[]"]), min_size=1, max_size=4
    )
)
def test_no_bytes_pass_together_that_would_not_alone(values: list[bytes]) -> None:
    for parser in (DECLARED, WHOLE):
        if quickly(parser, values) is not None:
            assert alone(parser, values) is not None


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"host": "h", "status": 1, "size": 2**63 - 1, "seconds": 0.5, "ok": True, "at": "2015-05-17T10:00:00Z", "more": [1]},
            {},
        ],
        [{"at": 1431856800}, {"at": None}],
        [{"at": 1431856800123}, {"at": -(10**12)}],
        [{"at": "2015-05-17T10:00:00"}, {"at": "2015-05-17"}],
        [{"at": 1431856800}, {"at": 1431856800123}],
        [{"seconds": 1}, {"seconds": 2**60 + 1}, {"seconds": 0.5}],
        [{}, {}],
    ],
)
def test_usual_objects_need_not_be_looked_at_one_by_one(rows: list[dict[str, Any]]) -> None:
    values = [json.dumps(row).encode() for row in rows]
    found = quickly(DECLARED, values)
    assert found is not None
    assert found == alone(DECLARED, values)


def test_digits_beyond_64_bits_are_kept() -> None:
    value = b'{"more": [123456789012345678901234567890, "1e23"], "data": 18446744073709551617}'
    assert DECLARED.parse(value)[-1] == '[123456789012345678901234567890,"1e23"]'
    assert json.loads(WHOLE.parse(value)[0]) == json.loads(value)


@pytest.mark.parametrize("number", [b"1e-20000", b"0." + b"0" * 20_000 + b"1"])
def test_a_number_with_more_digits_than_postgresql_takes_is_rounded_to_a_double(number: bytes) -> None:
    value = b'{"a": ' + number + b"}"
    assert WHOLE.parse(value) == ('{"a":0.0}',)
    assert quickly(WHOLE, [value]) is None


@pytest.mark.parametrize("number", ["0e999999", "-0E+999999", "0.00e999999", "[0e999999]", "-0e99999999999"])
def test_a_zero_with_an_exponent_that_postgresql_refuses_is_written_without_it(number: str) -> None:
    value = f'{{"a": {number}}}'.encode()
    assert WHOLE.quick is not None
    assert WHOLE.quick([b"{}", value]) is None
    assert float(json.loads(WHOLE.parse(value)[0].replace("[", "").replace("]", ""))["a"]) == 0
    assert WHOLE.parse(b'{"a": "0e999999", "b": 10e99}') == ('{"a": "0e999999", "b": 10e99}',)


def test_each_member_becomes_a_column_of_the_type_that_holds_all_its_values() -> None:
    values = [
        b'{"host": "a", "status": 200, "ratio": 1, "ok": true, "more": {"x": 1}, "id": 1, "none": null}',
        b'{"host": "b", "status": 404, "ratio": 0.5, "ok": null, "tags": [1], "id": "one"}',
        b"no JSON",
        None,
    ]
    kinds = ("text", "bigint", "double precision", "boolean", "jsonb", "jsonb", "jsonb")
    assert inferred_columns(values) == dict(zip(("host", "status", "ratio", "ok", "more", "id", "tags"), kinds, strict=True))


def test_of_names_that_differ_only_in_case_the_first_has_the_column() -> None:
    assert inferred_columns([b'{"Host": "a", "host": 1}', b'{"HOST": [], "up": true}']) == {"Host": "text", "up": "boolean"}


@pytest.mark.parametrize("name", ["", "_offset", "a\0b", "n" * 64, "xmin", "tableoid"])
def test_a_member_that_no_column_can_be_named_after_shows_nothing(name: str) -> None:
    assert inferred_columns([json.dumps({name: 1}).encode()]) == {}


def test_a_member_that_cannot_be_read_in_full_does_not_end_the_driver() -> None:
    nested = b'{"a": ' + b"[" * 300 + b"]" * 300
    assert inferred_columns([nested + rb', "b": "\\u0000"}', nested + rb', "b": "\u0000"}']) == {"a": "jsonb", "b": "text"}


def test_digits_beyond_a_bigint_are_kept_as_json() -> None:
    assert inferred_columns([b'{"n": 9223372036854775807}']) == {"n": "bigint"}
    assert inferred_columns([b'{"n": 9223372036854775808}']) == {"n": "jsonb"}


def test_what_has_no_column_is_kept_in_rest() -> None:
    assert list(INFERRING.columns) == ["host", "status", "_rest"]
    assert INFERRING.parse(b'{"host": "h"}') == ["h", None, None]
    rest = '{"new":[1,123456789012345678901]}'
    assert INFERRING.parse(b'{"host": "h", "new": [1, 123456789012345678901]}') == ["h", None, rest]
