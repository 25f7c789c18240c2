from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.parsing import Filtered, Unparsable, parser_for
from logbus.parsing.columns import column_names
from logbus.pipeline_settings import is_column_name, twins

FIELDS = ["time", "user", "amount"]
COLUMNS = {"time": "timestamptz", "amount": "double precision"}


def parse(line: str, **settings: Any) -> list[Any]:
    return list(parser_for("csv", {"fields": FIELDS, "columns": COLUMNS, **settings}).parse(line.encode()))


def test_fields_become_columns_in_the_order_of_the_line_whatever_order_types_are_declared_in() -> None:
    at = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
    assert parse('2015-05-17T10:05:03Z,"Doe, ""J""",1.5\r\n') == [at, 'Doe, "J"', 1.5]
    assert parse("2015-05-17T10:05:03Z,,", columns={"amount": "double precision", "time": "timestamptz"}) == [at, None, None]


def test_another_delimiter_is_taken() -> None:
    assert parse("1431857103;a,b;2", delimiter=";")[1] == "a,b"


@pytest.mark.parametrize("line", ["time,user,amount", "\ufeffTime,USER,Amount ", '"time","user","amount"', "# a comment", "#"])
def test_lines_that_are_no_records_are_filtered(line: str) -> None:
    with pytest.raises(Filtered):
        parse(line, comment="#")


def test_a_field_may_have_another_text_for_no_value() -> None:
    assert parse("-,jane,-", null_value="-") == [None, "jane", None]
    assert parse("#,-,1", columns={})[:2] == ["#", "-"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["Time", "User Name", "Amount (EUR)"], ["time", "user_name", "amount_eur"]),
        (["cs(User-Agent)", "id.orig_h", "_id", "ctid"], ["cs_user_agent", "id_orig_h", "id", "ctid_"]),
        (["a", "A", "a 2", "a"], ["a", "a_2", "a_2_2", "a_3"]),
        (["", "Größe", "%", "\u0130"], ["field_1", "grösse", "field_3", "i"]),
        (["ä" * 60, "ä" * 61], ["ä" * 29, "ä" * 29 + "_2"]),
    ],
)
def test_the_words_of_a_header_become_names_that_columns_may_have(words: list[str], names: list[str]) -> None:
    assert column_names(words) == names == column_names(names)
    assert all(map(is_column_name, names))
    assert twins(names) is None


def test_a_field_may_be_as_long_as_a_record() -> None:
    long = "x" * 1_000_000
    assert parse(f'1431857103,"{long}",2')[1] == long


@pytest.mark.parametrize(
    ("line", "kind"), [("a,b", "WrongNumberOfFields"), ("", "WrongNumberOfFields"), ('1,"b,3', "NotCsv"), ("1,b,x", "WrongType")]
)
def test_a_line_that_does_not_fit_is_a_dead_letter(line: str, kind: str) -> None:
    with pytest.raises(Unparsable) as refused:
        parse(line)
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fields": None}, "needs settings.fields"),
        ({"fields": ["a", "a"]}, "needs settings.fields"),
        ({"delimiter": ", "}, "one character"),
        ({"columns": {"amuont": "text"}}, "amuont is not among settings.fields"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse("1,2,3", **settings)
