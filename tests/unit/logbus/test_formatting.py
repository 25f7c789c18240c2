"""Numbers, lists and long texts in a sentence."""

from __future__ import annotations

import pytest
from logbus.formatting import LINE_CHARACTERS_MAX, cut, first_line, inert_json, printable


def test_a_line_is_the_first_and_has_an_end() -> None:
    assert first_line("\n one\ntwo") == "one"
    assert first_line("x" * 1000) == "x" * (LINE_CHARACTERS_MAX - 1) + "…"
    assert {first_line(text) for text in ("", " \n")} == {"no message"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zoë's größe 日本 🙂 \\n", "Zoë's größe 日本 🙂 \\n"),
        ("a\x1b[2J\nforged\r\t\x00\x7f", r"a\x1b[2J\nforged\r\t\x00\x7f"),
        ("\x9b31m \u2028 \u202e", r"\x9b31m \u2028 \u202e"),
        ("1\xa0000\u202f€ 日\u3000本 می\u200cخواهم", "1\xa0000\u202f€ 日\u3000本 می\u200cخواهم"),
        ("of a file name \udcff", r"of a file name \udcff"),
    ],
)
def test_what_is_printable_is_left_and_all_else_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_json_stays_what_it_is() -> None:
    assert inert_json('{"a": "Zoë\x9b"}') == '{"a": "Zoë\\u009b"}'


SIZE = 2_000
FULL = b"x" * SIZE


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (b"\xc3", b"\xc3"),  # too short to have been cut
        (FULL, FULL),
        (FULL[:-1] + b"\xc3", FULL[:-1]),
        (FULL[:-3] + "\U0001f980".encode()[:3], FULL[:-3]),
        (FULL + b"more", FULL),
        (b"\xff" + FULL[1:], b"\xff" + FULL[1:]),  # not text at all
    ],
)
def test_a_text_that_was_cut_ends_with_a_whole_character(value: bytes | None, kept: bytes | None) -> None:
    assert cut(value, SIZE) == kept
