from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.parsing import Unparsable, parser_for

WHOLE = parser_for("logfmt", {})
DECLARED = parser_for(
    "logfmt",
    {"columns": {"at": "timestamptz", "level": "text", "took": "double precision", "code": "integer", "debug": "boolean"}},
)


def pairs(line: bytes) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = json.loads(WHOLE.parse(line)[0])
    return found


def test_pairs_become_one_object_of_texts() -> None:
    assert pairs(b'level=info msg="started up" took=12ms debug empty= quoted=""\n') == {
        "level": "info",
        "msg": "started up",
        "took": "12ms",
        "debug": "true",
        "empty": "",
        "quoted": "",
    }


def test_nothing_of_a_name_that_occurs_again_is_lost() -> None:
    line = b"type=LOGIN msg=audit(1.5:7): pid=1 msg=done a=1 a=2 a=3"
    assert pairs(line) == {"type": "LOGIN", "msg": ["audit(1.5:7):", "done"], "pid": "1", "a": ["1", "2", "3"]}
    assert parser_for("logfmt", {"columns": {"a": "integer"}}).parse(line) == [3]


def test_escapes_in_quotes_are_undone_and_unknown_ones_stay() -> None:
    assert pairs(rb'a="say \"hi\" \\ \n \x"') == {"a": 'say "hi" \\ \n \\x'}


def test_declared_pairs_become_columns_of_their_types() -> None:
    row = DECLARED.parse(b"at=2015-05-17T10:00:00Z level=warn took=0.5 code=7 debug other=1")
    assert list(row) == [datetime(2015, 5, 17, 10, tzinfo=UTC), "warn", 0.5, 7, True]
    assert list(DECLARED.parse(b"level=info at=1431856800123"))[:2] == [
        datetime(2015, 5, 17, 10, 0, 0, 123_000, tzinfo=UTC),
        "info",
    ]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"", "NotLogfmt"),
        (b"  ", "NotLogfmt"),
        (b"=x", "NotLogfmt"),
        (b"-- the disk is full", "NotLogfmt"),
        (b'a="open', "NotLogfmt"),
        (b'a="x"y', "NotLogfmt"),
        (b"\xff=1", "NotUtf8"),
        (b"code=7.5", "WrongType"),
        (b"code=1_0", "WrongType"),
        (b"code=99999999999", "WrongType"),
        (b"debug=maybe", "WrongType"),
        (b"at=yesterday", "WrongType"),
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
