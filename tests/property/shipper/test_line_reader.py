"""For any text and any starting point: reading in two runs gives what one run gives, and no byte is lost."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from logbus.shipper.line_reader import Line, read_lines

HOLE = b"\0" * 16
TEXT = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bc", b"x" * 12, HOLE, b""])).map(b"".join)
LIMITS = st.integers(1, 20)


def read(text: bytes, position: int, limit: int, *, complete: bool) -> list[Line]:
    file = io.BytesIO(text)
    file.seek(position)
    return list(read_lines(file, position=position, line_bytes_max=limit, last_line_is_complete=complete))


@given(TEXT, LIMITS)
def test_lines_and_holes_cover_the_text_without_overlap(text: bytes, limit: int) -> None:
    lines, end = read(text, 0, limit, complete=True), 0
    for line in lines:
        assert text[end : line.position].strip(b"\0") == b""
        end = line.end
    assert text[end:].strip(b"\0") == b""


@given(TEXT, LIMITS)
def test_what_waits_is_only_what_follows_the_last_newline_or_hole(text: bytes, limit: int) -> None:
    lines = read(text, 0, limit, complete=False)
    waiting = text[lines[-1].end if lines else 0 :].strip(b"\0")
    assert b"\n" not in waiting
    assert HOLE not in waiting


@given(TEXT, LIMITS, st.data())
def test_stopping_anywhere_and_going_on_gives_the_same_lines(text: bytes, limit: int, data: st.DataObject) -> None:
    lines = read(text, 0, limit, complete=False)
    stop = data.draw(st.integers(0, len(lines)))
    position = lines[stop - 1].end if stop else 0
    assert lines[:stop] + read(text, position, limit, complete=False) == lines


@given(TEXT)
def test_a_file_that_grows_while_it_is_read_in_runs_loses_nothing(text: bytes) -> None:
    found: list[Line] = []
    for end in range(len(text) + 1):
        found += read(text[:end], found[-1].end if found else 0, 100, complete=False)
    assert found == read(text, 0, 100, complete=False)
