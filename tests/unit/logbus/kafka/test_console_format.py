from __future__ import annotations

import io
import json
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.kafka import console_format
from logbus.kafka.console_format import LineFormat, pieces, records, unescaped


class Trickle(io.RawIOBase):
    """Returns one byte at a time, like a slow pipe."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found, self.rest = self.rest[:1], self.rest[1:]
        buffer[: len(found)] = found
        return len(found)


@pytest.mark.parametrize(
    ("data", "delimiter", "found"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\nb", b"\n", [b"a", b"b"]),
        (b"a\n\nb\r\n", b"\n", [b"a", b"", b"b\r"]),
        (b"", b"\n", []),
        (b"a--b-c--", b"--", [b"a", b"b-c"]),
        (b"a\0b\nc\0", b"\0", [b"a", b"b\nc"]),
        (b"--", b"--", [b""]),
        (b"a-", b"--", [b"a-"]),
    ],
)
def test_text_is_cut_where_the_delimiter_is_however_it_arrives(data: bytes, delimiter: bytes, found: list[bytes]) -> None:
    assert list(pieces(io.BytesIO(data), delimiter)) == found
    assert list(pieces(io.BufferedReader(Trickle(data)), delimiter)) == found


@pytest.mark.parametrize("delimiter", [b"\n", b"--"])
def test_a_text_without_the_delimiter_is_refused_before_it_fills_the_memory(delimiter: bytes) -> None:
    with pytest.raises(UserError, match="is the delimiter"):
        list(pieces(io.BytesIO(b"x" * 101), delimiter, bytes_max=100))


@pytest.mark.parametrize(
    ("form", "text", "key", "value"),
    [
        (LineFormat(), b"a:b", None, b"a:b"),
        (LineFormat(key_delimiter=b":"), b"a:b:c", b"a", b"b:c"),
        (LineFormat(key_delimiter=b":"), b"no key", None, b"no key"),
        (LineFormat(key_delimiter=b":", key=b"k"), b"no key", b"k", b"no key"),
        (LineFormat(key=b"k"), b"a", b"k", b"a"),
        (LineFormat(key_delimiter=b":"), b"a:", b"a", b""),
        (LineFormat(key_delimiter=b":", empty_is_null=True), b"a:", b"a", None),
        (LineFormat(key_delimiter=b":", empty_is_null=True), b":b", None, b"b"),
    ],
)
def test_keys_are_found_as_kcat_finds_them(form: LineFormat, text: bytes, key: bytes | None, value: bytes | None) -> None:
    record = form.record(text)
    assert (record["key"], record["value"]) == (key, value)


def test_files_follow_each_other_and_headers_and_partition_go_with_each_record() -> None:
    form = LineFormat(headers=(("server", b"web1"),), partition=2)
    found = list(records([io.BytesIO(b"a"), io.BytesIO(b"b\n")], form))
    assert [one["value"] for one in found] == [b"a", b"b"]
    assert all((one["headers"], one["partition"]) == ((("server", b"web1"),), 2) for one in found)


@pytest.mark.parametrize(
    ("typed", "meant"), [("\\n", b"\n"), ("\\t", b"\t"), ("\\x1f", b"\x1f"), ("::", b"::"), ("é", "é".encode())]
)
def test_a_delimiter_is_typed_with_escapes(typed: str, meant: bytes) -> None:
    assert unescaped(typed) == meant


class Record:
    """The parts of confluent_kafka.Message that formatting uses; real messages are formatted in tests/integration/cli."""

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
    assert console_format.compiled(template)(Record()) == text


def test_null_has_the_length_minus_one_and_headers_are_pairs() -> None:
    assert console_format.compiled("%k|%K|%s|%S|%T")(Record(key=None, value=None, timestamp=(0, 0))) == b"|-1||-1|-1"
    assert console_format.compiled("%h")(Record(headers=[("a", b"1"), ("a", None)])) == b"a=1,a=NULL"


def test_an_unknown_token_is_named() -> None:
    with pytest.raises(ValueError, match="%y is unknown"):
        console_format.compiled("%y")


def test_the_envelope_is_kcats_and_bytes_that_are_no_text_survive() -> None:
    envelope = json.loads(console_format.envelope(Record(headers=[("a", b"1")], value=b"\xff\x00")))
    where = {"topic": "t", "partition": 3, "offset": 42, "tstype": "create", "ts": 1431856800000}
    assert envelope == {**where, "headers": ["a", "1"], "key": "k", "payload": None, "payload_base64": "/wA="}
    assert json.loads(console_format.envelope(Record(key=None, value=None, timestamp=(2, 5))))["tstype"] == "logappend"


@pytest.mark.parametrize("stamp", [(1, 1431856800000), (0, 0), (1, 10**18)])
def test_a_line_for_people_has_every_column_whatever_the_record_holds(stamp: tuple[int, int]) -> None:
    line = console_format.columns(Record(timestamp=stamp, key=None, value=b"\xfftext"))
    assert line.split()[:2] == [b"3", b"42"]
    assert line.endswith(b"\\xfftext\n")


def test_a_terminal_is_shown_control_characters_and_does_not_obey_them() -> None:
    shown = console_format.harmless(console_format.values(b"\n"))(Record(value=b"\x1b]0;owned\x07\tred\r"))
    assert shown == b"\\x1b]0;owned\\x07\tred\\x0d\n"


def test_a_terminal_does_not_obey_the_control_characters_beyond_ascii_and_shows_all_others() -> None:
    text = "\x9b31m Zoë° größe £\x80 日本".encode() + b" \xc2 \x9b"
    shown = console_format.harmless(console_format.values(b"\n"))(Record(value=text))
    assert shown == rb"\x9b31m " + "Zoë° größe £".encode() + rb"\x80 " + "日本".encode() + b" \xc2 \x9b\n"


def test_a_line_for_people_is_one_line_and_json_commands_no_terminal() -> None:
    record = Record(key=b"k\x1b[31m", value="v\x1b]0;pwn\x07 \x9b31m\n0  forged".encode())
    assert console_format.columns(record).endswith(rb"k\x1b[31m" + b" " * 13 + rb"v\x1b]0;pwn\x07 \x9b31m\n0  forged" + b"\n")
    line = console_format.envelope(record).decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["payload"] == record.value().decode()
