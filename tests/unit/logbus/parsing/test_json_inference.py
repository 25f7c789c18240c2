from __future__ import annotations

import json

import pytest
from logbus.parsing import parser_for
from logbus.parsing.json_inference import inferred_columns


def test_each_member_becomes_a_column_of_the_type_that_holds_all_its_values() -> None:
    values = [
        b'{"host": "a", "status": 200, "ratio": 1, "ok": true, "more": {"x": 1}, "id": 1, "none": null}',
        b'{"host": "b", "status": 404, "ratio": 0.5, "ok": null, "tags": [1], "id": "one"}',
        b"no JSON",
        None,
    ]
    assert inferred_columns(values) == {
        "host": "text",
        "status": "bigint",
        "ratio": "double precision",
        "ok": "boolean",
        "more": "jsonb",
        "id": "jsonb",
        "tags": "jsonb",
    }


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
    parser = parser_for("json", {"columns": {"host": "text"}, "infer": True})
    assert parser.columns == {"host": "text", "_rest": "jsonb"}
    assert parser.parse(b'{"host": "h"}') == ["h", None]
    assert parser.parse(b'{"host": "h", "new": [1, 123456789012345678901]}') == ["h", '{"new":[1,123456789012345678901]}']
