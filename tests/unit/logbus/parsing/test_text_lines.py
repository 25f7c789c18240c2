"""regex, logfmt and csv."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.errors import UserError
from logbus.parsing import Filtered, Unparsable, parser_for
from logbus.parsing.batches import column_names
from logbus.pipeline_settings import is_column_name, twins

PATTERN = r"(?P<level>[A-Z]+) (?:\[(?P<took>\d+)ms\] )?(?P<message>.*)"
REGEX = parser_for("regex", {"pattern": PATTERN, "columns": {"took": "integer"}})


def test_named_groups_are_the_columns_in_their_order() -> None:
    assert REGEX.columns == {"level": "text", "took": "integer", "message": "text"}
    assert REGEX.parse(b"WARN [12ms] slow\n") == ["WARN", 12, "slow"]


def test_a_group_that_took_no_part_is_null() -> None:
    assert REGEX.parse(b"INFO fine") == ["INFO", None, "fine"]


@pytest.mark.parametrize(
    ("line", "kind"), [(b"warn low", "NoMatch"), (b"INFO one\ntwo", "NoMatch"), (b"WARN [99999999999ms] x", "WrongType")]
)
def test_a_line_that_does_not_match_as_a_whole_is_a_dead_letter(line: bytes, kind: str) -> None:
    with pytest.raises(Unparsable) as caught:
        REGEX.parse(line)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "needs settings.pattern"),
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": "(.*)"}, "no named groups"),
        ({"pattern": "(?P<a>.*)", "columns": {"b": "text"}}, "b is not a named group"),
        ({"pattern": "(?P<_offset>.*)"}, "a leading _"),
    ],
)
def test_settings_that_make_no_parser_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parser_for("regex", settings)


WHOLE = parser_for("logfmt", {})
DECLARED = parser_for(
    "logfmt",
    {"columns": {"at": "timestamptz", "level": "text", "took": "double precision", "code": "integer", "debug": "boolean"}},
)


def pairs(line: bytes) -> Any:
    return json.loads(WHOLE.parse(line)[0])


def test_pairs_become_one_object_of_texts() -> None:
    texts = {"level": "info", "msg": "started up", "took": "12ms", "debug": "true", "empty": "", "quoted": ""}
    assert pairs(b'level=info msg="started up" took=12ms debug empty= quoted=""\n') == texts


def test_nothing_of_a_name_that_occurs_again_is_lost() -> None:
    line = b"type=LOGIN msg=audit(1.5:7): pid=1 msg=done a=1 a=2 a=3"
    assert pairs(line) == {"type": "LOGIN", "msg": ["audit(1.5:7):", "done"], "pid": "1", "a": ["1", "2", "3"]}
    assert parser_for("logfmt", {"columns": {"a": "integer"}}).parse(line) == [3]


def test_escapes_in_quotes_are_undone_and_unknown_ones_stay() -> None:
    assert pairs(rb'a="say \"hi\" \\ \n \x"') == {"a": 'say "hi" \\ \n \\x'}


def test_declared_pairs_become_columns_of_their_types() -> None:
    row = DECLARED.parse(b"at=2015-05-17T10:00:00Z level=warn took=0.5 code=7 debug other=1")
    assert list(row) == [datetime(2015, 5, 17, 10, tzinfo=UTC), "warn", 0.5, 7, True]
    at = datetime(2015, 5, 17, 10, 0, 0, 123_000, tzinfo=UTC)
    assert list(DECLARED.parse(b"level=info at=1431856800123"))[:2] == [at, "info"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        *((line, "NotLogfmt") for line in (b"", b"  ", b"=x", b"-- the disk is full", b'a="open', b'a="x"y')),
        *((line, "WrongType") for line in (b"code=7.5", b"code=1_0", b"code=99999999999", b"debug=maybe", b"at=yesterday")),
        (b"\xff=1", "NotUtf8"),
    ],
)
def test_what_does_not_parse_says_why(line: bytes, kind: str) -> None:
    with pytest.raises(Unparsable) as caught:
        DECLARED.parse(line)
    assert caught.value.kind == kind


@given(st.binary(max_size=60) | st.text(alphabet='ab=" \\n\t', max_size=40).map(str.encode))
def test_any_bytes_parse_or_are_unparsable_and_nothing_else(value: bytes) -> None:
    for parser in (WHOLE, DECLARED):
        with suppress(Unparsable):
            assert len(parser.parse(value)) == len(parser.columns)


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
