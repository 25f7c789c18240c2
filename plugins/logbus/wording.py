"""How numbers, lists, long texts and bytes are shown: in sentences of every kind, in JSON, on pages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

LINE_CHARACTERS_MAX = 200  # of a reason that stands in a row of others; the page or command about the one thing has all of it


def many(count: int, what: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def several(names: Sequence[str], named_max: int, *, count: int | None = None, separator: str = ", ") -> str:
    """`a, b and 7 more`: the first `named_max`, and how many are not named. `count` is how many there are where `names` itself
    is only the first of them."""
    named = separator.join(names[:named_max])
    more = (len(names) if count is None else count) - named_max
    return f"{named} and {more:,} more" if more > 0 else named


def first_line(text: str) -> str:
    """What an error or a program said, as far as one line shows it."""
    line = text.strip().partition("\n")[0] or "it says nothing"
    return line if len(line) <= LINE_CHARACTERS_MAX else line[: LINE_CHARACTERS_MAX - 1] + "…"


def shown_value(value: bytes | None) -> dict[str, Any]:
    """A value for JSON: as text where it is text that PostgreSQL holds, otherwise in base64."""
    if value is None:
        return {"value": None}
    text_of = value.decode(errors="replace")
    if text_of.encode() == value and "\0" not in text_of:
        return {"value": text_of}
    return {"value_base64": base64.b64encode(value).decode()}


def cut(value: bytes | None, size: int) -> bytes | None:
    """The first `size` bytes; without a character of UTF-8 that would be cut in two at their end."""
    if value is None or len(value) < size:
        return value
    head = value[:size]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        is_cut_at_end = error.reason == "unexpected end of data"
        return head[: error.start] if is_cut_at_end else head
    return head
