"""How numbers, lists, long texts and bytes are shown: in sentences of every kind, in JSON, on pages."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, quote_plus

JOINERS = "\u200c\u200d"
DOUBTFUL = re.compile("[^ -~]")  # looked at one by one
C1 = re.compile("[\x80-\x9f]")
LINE_CHARACTERS_MAX = 200  # of a reason shown in a list; the page or command for the single item shows all of it


def many(count: int, what: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def several(names: Sequence[str], named_max: int, *, count: int | None = None, separator: str = ", ") -> str:
    """`a, b and 7 more`: the first `named_max`, and how many are not named. `count` is the total if `names` holds only the
    first of them."""
    named = separator.join(names[:named_max])
    more = (len(names) if count is None else count) - named_max
    return f"{named} and {more:,} more" if more > 0 else named


def first_line(text: str) -> str:
    """The first line of an error or of a program's output, cut to a length that fits."""
    line = text.strip().partition("\n")[0] or "no message"
    return line if len(line) <= LINE_CHARACTERS_MAX else line[: LINE_CHARACTERS_MAX - 1] + "…"


def printable(text: str) -> str:
    """The text on one line, with every character escaped that does not show: peers choose the names of groups and clients,
    which must neither begin a line of their own nor command a terminal."""
    return text if text.isprintable() else DOUBTFUL.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    # Python does not call the wide spaces of French and Japanese texts printable, nor what joins letters in Persian and Hindi.
    is_shown = character.isprintable() or unicodedata.category(character) == "Zs" or character in JOINERS
    return character if is_shown else character.encode("unicode_escape").decode()


def inert_json(text: str) -> str:
    """The same JSON, with the control characters escaped that JSON lets pass: a terminal obeys U+009B as it does ESC [."""
    return text if text.isascii() else C1.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def spellings(secret: str) -> list[str]:
    """Each form in which a secret may appear in a text that has to hide it: as it is, in JSON, in a URL of any writer's.
    SQLAlchemy's keep spaces and plus signs, those that libpq reads plus signs."""
    in_urls = (quote(secret, safe=kept) for kept in ("", "+", " +"))
    return list(dict.fromkeys([secret, json.dumps(secret)[1:-1], *in_urls, quote_plus(secret)]))


def shown_value(value: bytes | None) -> dict[str, Any]:
    """A value for JSON: as text if it is text that PostgreSQL can store, otherwise in base64."""
    if value is None:
        return {"value": None}
    text_of = value.decode(errors="replace")
    if text_of.encode() == value and "\0" not in text_of:
        return {"value": text_of}
    return {"value_base64": base64.b64encode(value).decode()}


def cut(value: bytes | None, size: int) -> bytes | None:
    """The first `size` bytes, without a UTF-8 character that would be cut in two at the end."""
    if value is None or len(value) < size:
        return value
    head = value[:size]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        is_cut_at_end = error.reason == "unexpected end of data"
        return head[: error.start] if is_cut_at_end else head
    return head
