from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from logbus.shipper.line_reader import Line, first_lines, holds_more, open_log, read_lines

HOLE = b"\0" * 20


def lines(text: bytes, *, position: int = 0, limit: int = 100, complete: bool = False) -> list[Line]:
    file = io.BytesIO(text)
    file.seek(position)
    return list(read_lines(file, position=position, line_bytes_max=limit, last_line_is_complete=complete))


@pytest.mark.parametrize(
    ("text", "how", "found"),
    [
        (b"one\ntwo\n", {}, [Line(0, 4, b"one"), Line(4, 8, b"two")]),
        (b"one\ntwo\n", {"position": 4}, [Line(4, 8, b"two")]),
        (b"one\r\ntwo\r\n", {}, [Line(0, 5, b"one"), Line(5, 10, b"two")]),
        (b"\na\n", {}, [Line(0, 1, b""), Line(1, 3, b"a")]),
        (b"one\ntw", {}, [Line(0, 4, b"one")]),  # the last line waits, unless nobody will append
        (b"one\ntw", {"complete": True}, [Line(0, 4, b"one"), Line(4, 6, b"tw")]),
        (b"a\n" + b"x" * 11 + b"\nb\n", {"limit": 10}, [Line(0, 2, b"a"), Line(2, 14, None), Line(14, 16, b"b")]),
        (b"a\n" + b"x" * 50, {"limit": 10}, [Line(0, 2, b"a")]),
        (HOLE + b"one\ntwo\n", {}, [Line(20, 24, b"one"), Line(24, 28, b"two")]),
        (HOLE * 50 + b"one\n", {"limit": 10}, [Line(1000, 1004, b"one")]),
        (b"one\n" + HOLE + b"two\n", {}, [Line(0, 4, b"one"), Line(24, 28, b"two")]),
        (b"one" + HOLE + b"two\n", {}, [Line(0, 23, b"one"), Line(23, 27, b"two")]),  # torn off
        (b"one\ntw" + HOLE, {}, [Line(0, 4, b"one")]),  # a writer may still fill it in
        (b"one\ntw" + HOLE, {"complete": True}, [Line(0, 4, b"one"), Line(4, 6, b"tw")]),
        (b"x" * 500 + HOLE + b"b\n", {"limit": 18}, [Line(0, 500, None), Line(520, 522, b"b")]),
        (b"one\0two\n", {}, [Line(0, 8, b"one\0two")]),
        *((b"x" * 10 + end, {"limit": 10}, [Line(0, 10 + len(end), b"x" * 10)]) for end in (b"\n", b"\r\n")),
    ],
)
def test_lines_know_where_they_begin_and_end(text: bytes, how: dict[str, Any], found: list[Line]) -> None:
    assert lines(text, **how) == found


def test_the_mark_of_utf_8_is_no_part_of_the_first_line_and_of_others_it_is() -> None:
    assert lines(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n") == [Line(3, 7, b"one"), Line(7, 14, b"\xef\xbb\xbftwo")]
    assert lines(b"\xef\xbb\xbf" + b"x" * 50 + b"\nb\n", limit=10) == [Line(3, 54, None), Line(54, 56, b"b")]
    assert lines(b"\xef\xbb\xbf", complete=True) == [Line(3, 3, b"")]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: bytes(cramjam.zstd.compress(text)),
    "lz4": lambda text: bytes(cramjam.lz4.compress(text)),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_text_has_the_positions_of_the_text(ending: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / f"a.log.1.{ending}"
    plain.write_bytes(b"one\ntwo\n" * 100_000)
    packed.write_bytes(PACKERS[ending](plain.read_bytes()) + PACKERS[ending](b"more\n"))  # of two parts, as `cat` of two files
    for position in (0, 7, 400_000, 800_000):
        with open_log(plain, position) as one, open_log(packed, position) as other:
            assert one.read() + b"more\n" == other.read()
    assert [holds_more(packed, 800_004 + number) for number in range(3)] == [True, False, False]
    packed.write_bytes(packed.read_bytes()[:15])
    assert holds_more(packed, 800_000), "reading it reports the damage"
    assert first_lines(packed, 10, 100) == []


def test_of_a_file_that_ends_in_the_middle_of_its_compression_the_first_lines_are_those_that_can_be_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(b"".join(b"line %06d\n" % number for number in range(100_000)))[:-40_000])
    found = first_lines(packed, 1_000_000, 100)
    assert 0 < len(found) < 100_000
    assert found[:2] == [Line(0, 12, b"line 000000"), Line(12, 24, b"line 000001")]
    assert len(first_lines(packed, 10, 100)) == 10
