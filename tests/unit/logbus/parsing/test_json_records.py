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

from tests.unit.logbus.parsing.test_json_format import COLUMNS, DECLARED, WHOLE


def parse(members: Any) -> dict[str, Any]:
    return dict(zip(DECLARED.columns, DECLARED.parse(json.dumps(members).encode()), strict=True))


def kind_of(value: bytes, parser: Any = WHOLE) -> str:
    with pytest.raises(Unparsable) as caught:
        parser.parse(value)
    return caught.value.kind


def test_without_columns_the_whole_object_is_kept() -> None:
    (data,) = WHOLE.parse('{"a": 1, "b": ["\u00e9", null]}'.encode())
    assert json.loads(data) == {"a": 1, "b": ["\u00e9", None]}
    assert WHOLE.columns == {"data": "jsonb"}


def test_declared_members_become_columns() -> None:
    members = {"host": "h", "status": 200, "size": 2**40, "seconds": 1, "ok": True, "at": "2015-05-17T10:00:00Z", "more": [1]}
    assert parse(members) == {**members, "at": datetime(2015, 5, 17, 10, tzinfo=UTC), "more": "[1]"}


def test_members_that_are_absent_or_null_are_null_and_others_are_left_out() -> None:
    assert set(parse({"host": None, "stranger": 1}).values()) == {None}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"status": status} for status in ("200", 2**31, True, 1.5)),
        *({"at": at} for at in ("yesterday", True, 1e300, [])),
        *({"host": 5}, {"size": 2**63}, {"seconds": "1"}, {"ok": 1}),
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
        (b'{"a": "\\u0000", "a": 1}', "NulCharacter"),
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
def test_any_object_becomes_a_row_or_is_unparsable(members: dict[str, Any]) -> None:
    with suppress(Unparsable):
        assert len(DECLARED.parse(json.dumps(members).encode())) == len(COLUMNS)


def test_an_unknown_type_and_an_unknown_parser_are_refused() -> None:
    with pytest.raises(UserError, match="varchar"):
        parser_for("json", {"columns": {"a": "varchar"}})
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
