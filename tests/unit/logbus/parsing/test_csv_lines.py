from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.parsing import Filtered, Unparsable, parser_for

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


def test_the_line_of_names_at_a_files_beginning_is_filtered() -> None:
    with pytest.raises(Filtered):
        parse("time,user,amount")


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
