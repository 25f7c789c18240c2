from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.errors import UserError
from logbus.parsing import Unparsable, parser_for

WHOLE = parser_for("json", {})
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


def parse(found: Any) -> dict[str, Any]:
    return dict(zip(DECLARED.columns, DECLARED.parse(json.dumps(found).encode()), strict=True))


def kind_of(value: bytes, parser: Any = WHOLE) -> str:
    with pytest.raises(Unparsable) as caught:
        parser.parse(value)
    return caught.value.kind


def test_without_columns_the_whole_object_is_kept() -> None:
    (data,) = WHOLE.parse('{"a": 1, "b": ["\u00e9", null]}'.encode())
    assert json.loads(data) == {"a": 1, "b": ["\u00e9", None]}
    assert WHOLE.columns == {"data": "jsonb"}


def test_declared_members_become_columns() -> None:
    row = parse({"host": "h", "status": 200, "size": 2**40, "seconds": 1, "ok": True, "at": "2015-05-17T10:00:00Z", "more": [1]})
    assert row == {
        "host": "h",
        "status": 200,
        "size": 2**40,
        "seconds": 1.0,
        "ok": True,
        "at": datetime(2015, 5, 17, 10, tzinfo=UTC),
        "more": "[1]",
    }


def test_members_that_are_absent_or_null_are_null_and_others_are_left_out() -> None:
    assert set(parse({"host": None, "stranger": 1}).values()) == {None}


@pytest.mark.parametrize("at", [1431856800, 1431856800.0, 1431856800000, "2015-05-17T12:00:00+02:00", "2015-05-17T10:00:00"])
def test_a_timestamp_is_an_instant_or_seconds_or_milliseconds(at: Any) -> None:
    assert parse({"at": at})["at"] == datetime(2015, 5, 17, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": 5},
        {"status": "200"},
        {"status": 2**31},
        {"status": True},
        {"status": 1.5},
        {"size": 2**63},
        {"seconds": "1"},
        {"ok": 1},
        {"at": "yesterday"},
        {"at": True},
        {"at": 1e300},
        {"at": []},
    ],
)
def test_a_member_of_another_type_makes_a_dead_letter(wrong: Any) -> None:
    assert kind_of(json.dumps(wrong).encode(), DECLARED) == "WrongType"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"", "BadJson"),
        (b"{", "BadJson"),
        (b'{"a": NaN}', "BadJson"),
        (b'{"a": Infinity}', "BadJson"),
        (b'{"a": 1e999}', "BadNumber"),
        (b"[" * 200_000, "BadJson"),
        (b"[1]", "NotAnObject"),
        (b'"text"', "NotAnObject"),
        (b"null", "NotAnObject"),
        (b'{"a": "\xff"}', "NotUtf8"),
        (b'{"a": "\\u0000"}', "NulCharacter"),
        (b'{"\\u0000": 1}', "NulCharacter"),
        (b'{"a": "\\ud800"}', "HalfSurrogate"),
    ],
)
def test_what_postgresql_could_not_hold_never_reaches_it(value: bytes, kind: str) -> None:
    assert kind_of(value) == kind


def test_a_backslash_before_u0000_is_plain_text() -> None:
    (data,) = WHOLE.parse(rb'{"a": "\\u0000"}')
    assert json.loads(data) == {"a": "\\u0000"}


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_unparsable_and_nothing_else(value: bytes) -> None:
    for parser in (WHOLE, DECLARED):
        with suppress(Unparsable):
            assert len(parser.parse(value)) == len(parser.columns)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from([*COLUMNS, "other"]), JSON_VALUES))
def test_any_object_becomes_a_row_or_is_unparsable(found: dict[str, Any]) -> None:
    with suppress(Unparsable):
        assert len(DECLARED.parse(json.dumps(found).encode())) == len(COLUMNS)


def test_unknown_types_and_reserved_names_are_refused_when_the_parser_is_built() -> None:
    with pytest.raises(UserError, match="varchar"):
        parser_for("json", {"columns": {"a": "varchar"}})
    with pytest.raises(UserError, match="_offset"):
        parser_for("json", {"columns": {"_offset": "text"}})


def test_an_unknown_parser_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UserError, match="combined, csv, json, .*, syslog, or by module:function"):
        parser_for("xml", {})


@pytest.mark.parametrize("settings", [{}, {"columns": {"a": "jsonb"}}, {"infer": True}])
def test_json_that_is_nested_deeper_than_orjson_writes_is_kept(settings: dict[str, Any]) -> None:
    value = b'{"a": ' + b"[" * 500 + b"]" * 500 + b', "b": "\\\\u0000"}'
    (kept,) = [text for text in parser_for("json", settings).parse(value) if text is not None]
    assert kept.count("[") == 500


@pytest.mark.parametrize("settings", [{}, {"columns": {"a": "jsonb"}}, {"columns": {"a": "integer"}}, {"infer": True}])
def test_json_that_nothing_can_write_again_is_a_dead_letter(settings: dict[str, Any]) -> None:
    value = b'{"a": ' + b"[" * 1_020 + b"]" * 1_020 + b', "b": "' + b"x" * 20_000 + b'"}'
    with pytest.raises(Unparsable, match="nested too deeply"):
        parser_for("json", settings).parse(value)


def test_a_nul_is_refused_in_a_member_that_a_later_one_replaces_too() -> None:
    with pytest.raises(Unparsable) as refused:
        parser_for("json", {}).parse(rb'{"a": "\u0000", "a": 1}')
    assert refused.value.kind == "NulCharacter"
