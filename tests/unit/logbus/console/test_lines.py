from __future__ import annotations

import io

import pytest
from logbus.console.lines import LineFormat, pieces, records, unescaped
from logbus.errors import UserError


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
