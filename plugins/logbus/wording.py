"""How numbers, lists and long texts are put into a sentence, in messages of every kind."""

from __future__ import annotations

from collections.abc import Sequence

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
