from __future__ import annotations

import json
from typing import Any

import pytest
from logbus.console import formatting


class Record:
    """The parts of confluent_kafka.Message that formatting uses; real messages are formatted in tests/integration/commands."""

    def __init__(self, **fields: Any) -> None:
        self.fields = {"key": b"k", "value": b"text", "headers": None, "timestamp": (1, 1431856800000), **fields}

    def __getattr__(self, name: str) -> Any:
        known = {"topic": "t", "partition": 3, "offset": 42, **self.fields}
        return lambda: known[name]

    def headers(self) -> Any:  # which many messages of one class are asked for at once
        return self.fields["headers"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%s\\n", b"text\n"),
        ("%t [%p] %o: %k=%s", b"t [3] 42: k=text"),
        ("%K/%S", b"1/4"),
        ("%T", b"1431856800000"),
        ("100%%", b"100%"),
        ("%h", b""),
        ("\\t\\x41", b"\tA"),
        ("%R%s", b"\0\0\0\4text"),
        ("", b""),
    ],
)
def test_a_format_is_kcats(template: str, text: bytes) -> None:
    assert formatting.compiled(template)(Record()) == text


def test_null_is_nothing_with_the_length_minus_one() -> None:
    assert formatting.compiled("%k|%K|%s|%S|%T")(Record(key=None, value=None, timestamp=(0, 0))) == b"|-1||-1|-1"


def test_headers_are_pairs() -> None:
    assert formatting.compiled("%h")(Record(headers=[("a", b"1"), ("a", None)])) == b"a=1,a=NULL"


def test_a_token_that_there_is_not_is_said() -> None:
    with pytest.raises(ValueError, match="%y is unknown"):
        formatting.compiled("%y")


def test_the_envelope_is_kcats_and_bytes_that_are_no_text_survive() -> None:
    found = json.loads(formatting.envelope(Record(headers=[("a", b"1")], value=b"\xff\x00")))
    assert found == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "tstype": "create",
        "ts": 1431856800000,
        "headers": ["a", "1"],
        "key": "k",
        "payload": None,
        "payload_base64": "/wA=",
    }
    assert json.loads(formatting.envelope(Record(key=None, value=None, timestamp=(2, 5))))["tstype"] == "logappend"


@pytest.mark.parametrize("stamp", [(1, 1431856800000), (0, 0), (1, 10**18)])
def test_a_line_for_people_has_every_column_whatever_the_record_holds(stamp: tuple[int, int]) -> None:
    line = formatting.columns(Record(timestamp=stamp, key=None, value=b"\xfftext"))
    assert line.split()[:2] == [b"3", b"42"]
    assert line.endswith(b"\\xfftext\n")


def test_a_terminal_is_shown_control_characters_and_does_not_obey_them() -> None:
    shown = formatting.harmless(formatting.values(b"\n"))(Record(value=b"\x1b]0;owned\x07\tred\r"))
    assert shown == b"\\x1b]0;owned\\x07\tred\\x0d\n"


def test_a_terminal_does_not_obey_the_control_characters_beyond_ascii_and_shows_all_others() -> None:
    text = "\x9b31m Zoë° größe £\x80 日本".encode() + b" \xc2 \x9b"
    shown = formatting.harmless(formatting.values(b"\n"))(Record(value=text))
    assert shown == rb"\x9b31m " + "Zoë° größe £".encode() + rb"\x80 " + "日本".encode() + b" \xc2 \x9b\n"


def test_a_line_for_people_is_one_line_and_json_commands_no_terminal() -> None:
    record = Record(key=b"k\x1b[31m", value="v\x1b]0;pwn\x07 \x9b31m\n0  forged".encode())
    assert formatting.columns(record).endswith(rb"k\x1b[31m" + b" " * 13 + rb"v\x1b]0;pwn\x07 \x9b31m\n0  forged" + b"\n")
    line = formatting.envelope(record).decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["payload"] == record.value().decode()
