"""Where in a file's lines the time stands, for formats that are searched for near a line's beginning.

A date found there need not be the line's own. An exception's text quotes the dates that it is about (`Key (at)=(2015-01-01
00:00:00) already exists.`), and such a line stands among those of the log. So the lines of a file are looked at together: if most
of them have their time after the same number of words (nearly always none), a date after more words is data.

In other lines as many words precede as a thread's or a user's name has. If the time follows a sign (`[main worker] `, `user,"`),
that sign marks it there, too. If neither is the same in most lines, a time may stand anywhere near the beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

LINE_START_BYTES = 160  # a time further inside is more likely data than the line's own stamp
# What share of the dates must stand in one place for the others to be data. In a log of errors most lines with a date may be
# those of exceptions, and a date at the very beginning is hardly ever data. A place after words is less certain.
SHARE_AT_FIRST = 0.25
SHARE_AFTER_WORDS = 0.75

_COLOUR = rb"\x1b\[[\d;]*m"
# What may precede a time that begins the line; written for speed, it is tried on every line.
_SIGNS = rb"[^\w\s]*(?:(?<=\x1b\[)[\d;]*m[^\w\s]*)*"


@dataclass(frozen=True, slots=True)
class LineTimeSearch:
    """Finds a time near a line's beginning, after at most `words` words, or more between the same `signs`. The group
    of `form` is the time itself."""

    form: re.Pattern[bytes]
    words: int | None = None
    signs: tuple[bytes, bytes] | None = None
    at_first: re.Pattern[bytes] | None = None  # the form, with nothing but signs before it

    def is_own(self, match: re.Match[bytes]) -> bool:
        """Whether the time found is that of its line."""
        if self.words is None or self.at_first is not None or words_before(match) <= self.words:
            return True
        return self.signs is not None and signs_around(match) == self.signs

    def as_in(self, lines: Sequence[bytes]) -> LineTimeSearch:
        """The same for a file with these lines: the place of most of their times, if there is one."""
        found = [match for line in lines if (match := self.form.search(line, 0, LINE_START_BYTES))]
        if not found:
            return self
        counts = Counter(map(words_before, found))
        words = min(counts, key=lambda number: (-counts[number], number))
        if counts[0] >= SHARE_AT_FIRST * len(found) and counts[0] >= counts[1]:  # after one word: a level perhaps, not data
            return self.at_beginning()
        of_place = [signs_around(match) for match in found if words_before(match) == words]
        (signs, often), *_ = Counter(of_place).most_common(1)
        placed = replace(self, words=words, signs=signs if often >= SHARE_AFTER_WORDS * len(of_place) else None)
        return placed if sum(map(placed.is_own, found)) >= SHARE_AFTER_WORDS * len(found) else self

    def at_beginning(self) -> LineTimeSearch:
        """The same, with nothing but signs before the time."""
        return replace(self, words=0, at_first=re.compile(_SIGNS + rb"(?:%b)" % self.form.pattern))


def words_before(match: re.Match[bytes]) -> int:
    """How many words precede the time; a bracket or quote that it is in is none."""
    before = re.sub(_COLOUR, b"", match.string[: match.start(1)])
    words = before.split()
    return len(words) - bool(words and not before[-1:].isspace() and not re.search(rb"\w", words[-1]))


def signs_around(match: re.Match[bytes]) -> tuple[bytes, bytes] | None:
    """The sign before the time, across spaces, and the character after it; None if a word precedes."""
    start, end = match.span(1)
    before = match.string[:start].rstrip()[-1:]
    return None if not before or re.match(rb"\w", before) else (before, match.string[end : end + 1])
