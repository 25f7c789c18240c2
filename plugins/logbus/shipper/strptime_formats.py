"""Times in a format that is named by strptime's directives: `--time-format '%d.%m.%Y %H:%M:%S'`.

The regular expressions only find where such a time begins and ends; `datetime.strptime` reads it, so a format means what it means
in Python, with two exceptions. Numbers without anything between them need all of their digits: strptime takes `2026 10:05:03` for
a `%y%m%d %H:%M:%S` of the year 2020. And a fraction and a zone that follow the time are read with it, named or not.

A format that cannot say when a line was written is rejected: one without a day, or `%H` beside `%p`, which strptime ignores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from logbus.parsing import times

# What each directive may match. %s is that of date: seconds since 1970, or smaller units by their size. Of zone names (%Z)
# strptime accepts UTC, GMT and those of the local machine, whose offset from UTC it does not apply: here all are read as they are
# behind any other time.
_DIRECTIVES: Mapping[str, str] = {
    **dict.fromkeys("mHIMS", r"\d{1,2}"),
    **{"d": r" ?\d{1,2}", "j": r"\d{1,3}", "Y": r"\d{4}", "y": r"\d\d", "f": r"\d{1,6}(?P<cut>\d*)"},
    **{"p": r"[AaPp][Mm]", "b": r"[A-Za-z]{3}", "B": r"[A-Za-z]{3,9}", "a": r"[A-Za-z]{3}", "A": r"[A-Za-z]{6,9}"},
    **{
        "z": r"(?:Z|[+-]\d\d:?\d\d(?::?\d\d(?:\.\d{1,6})?)?)",
        "Z": rf"(?P<zone>(?i:UTC|GMT)|{times.ABBREVIATION.decode()})",
        "s": times.EPOCH_DIGITS,
        "%": "%",
    },
}
_ALL_DIGITS = {**dict.fromkeys("mdHIMS", r"\d\d"), "j": r"\d{3}"}
_NUMBERS = frozenset("YymdjHIMSfs")
_NOTHING = rb"((?!))?"  # a group that takes no part in a match
_CLOCK = re.compile(rb"(?<![\d:.])\d{1,2}:\d\d(?!\d)")
_YEAR = rb"(?:19|20)\d\d"
_YEAR_BEFORE = re.compile(rb"(?<!\d)" + _YEAR + rb"[\s/.,-]*$")
_YEAR_BEHIND = re.compile(rb"[\s/.,-]*(?:" + times.ABBREVIATION + rb")?\s*(" + _YEAR + rb")\b")
_ZONE_BEFORE = re.compile(rb"\b" + times.ABBREVIATION + rb"\s+(?:[A-Z][a-z]{2}\s+)?$")


@dataclass(frozen=True, slots=True)
class WrittenFormat:
    """A format, compiled. `form` finds its time in a line: groups for all of it, for what strptime reads, and at the end for a
    fraction and a zone that follow."""

    text: str
    names: frozenset[str]
    form: re.Pattern[bytes]
    moment: Callable[[re.Match[bytes], times.TimeContext], times.Moment | None]

    @property
    def has_year(self) -> bool:
        return not self.names.isdisjoint("Yys")

    @property
    def has_zone(self) -> bool:
        return not self.names.isdisjoint("zZs")

    @property
    def has_clock(self) -> bool:
        return not self.names.isdisjoint("HIs")

    def unread(self, before: bytes, behind: bytes) -> str | None:
        """What stands beside the time that is a part of it, and not read: an hour, a year, a zone."""
        if not self.has_clock and (clock := _CLOCK.search(before) or _CLOCK.search(behind)):
            return f"the time of day {clock[0].decode()}"
        if not self.has_year and (year := _YEAR_BEFORE.search(before) or _YEAR_BEHIND.match(behind)):
            return f"the year {year[0].decode().strip()}"
        return None if self.has_zone else zone_before(before)


def zone_before(before: bytes) -> str | None:
    """An abbreviation of a zone at the end of what precedes a time."""
    zone = _ZONE_BEFORE.search(before)
    return None if zone is None else f"the zone {zone[0].decode().strip()}"


@lru_cache
def compiled(format_of: str) -> WrittenFormat:
    """ValueError for a format that cannot be, or cannot say when a line was written."""
    parts = re.split(r"%(.)", format_of)
    names = frozenset(parts[1::2])
    _validate_directives(names)
    pattern = "".join(
        _directive(parts, index) if index % 2 else re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part))
        for index, part in enumerate(parts)
    )
    if "s" in names:
        form = rb"(?<![0-9A-Za-z])((%b))(?![0-9])" % pattern.encode()
    else:
        last = parts[-2] if not parts[-1] else ""
        tail = times.NOTHING_UNREAD if "H" in names and names.isdisjoint("zZ") else b""
        tail += times.FRACTION if last == "S" else _NOTHING
        tail += times.ZONE if names.isdisjoint("zZ") and not names.isdisjoint("HI") else _NOTHING
        # A number and a sign at either end belong to the time: `11-26 10:05` is not all of `20-11-26 10:05:03`.
        form = rb"(?<![0-9A-Za-z])(?<!\d[/.-])((%b)%b)(?![0-9]|[:-][0-9])" % (pattern.encode(), tail)
    return WrittenFormat(format_of, names, re.compile(form), _number if "s" in names else _reader(format_of, names))


def _validate_directives(names: frozenset[str]) -> None:
    if unknown := sorted(names - _DIRECTIVES.keys()):
        raise ValueError(f"%{unknown[0]} is not one of strptime's directives that stand for a date or a time")
    if not names - {"%"}:
        raise ValueError("it has no directive: write it like %d.%m.%Y %H:%M:%S")
    if "s" in names:
        return
    if "j" not in names and ("d" not in names or names.isdisjoint("mbB")):
        raise ValueError("it does not say the day: add %d with %m or %b, or %j")
    if ("I" in names) != ("p" in names):
        raise ValueError("%I and %p need each other: %H is the hour of 24")


def _directive(parts: list[str], index: int) -> str:
    """The directive at this place of the split format; the odd parts are directives, the others are the text between them."""
    name = parts[index]
    before = parts[index - 2] if index > 1 and not parts[index - 1] else ""
    behind = parts[index + 2] if index + 2 < len(parts) and not parts[index + 1] else ""
    is_tight = name in _NUMBERS and (before in _NUMBERS or behind in _NUMBERS)
    return _ALL_DIGITS.get(name, _DIRECTIVES[name]) if is_tight else _DIRECTIVES[name]


def _number(match: re.Match[bytes], around: times.TimeContext) -> times.Moment | None:
    number = re.search(times.EPOCH_DIGITS.encode(), match[2])
    return times.epoch_moment(number[0]) if number else None


def _for_strptime(match: re.Match[bytes], names: frozenset[str]) -> bytes:
    """The time as strptime takes it: its %f has at most six digits, where loggers with nanoseconds write nine, and its %Z knows
    few names."""
    written, start = match[2], match.start(2)
    parts = [(match.span("cut"), b"")] if "f" in names else []
    parts += [(match.span("zone"), b"UTC")] if "Z" in names else []
    for (begin, end), instead in sorted(parts, reverse=True):
        written = written[: begin - start] + instead + written[end - start :]
    return written


def _reader(format_of: str, names: frozenset[str]) -> Callable[[re.Match[bytes], times.TimeContext], times.Moment | None]:
    has_year, is_plain = not names.isdisjoint("Yy"), names.isdisjoint("fZ")

    @lru_cache(times.STAMPS_REMEMBERED)
    def of_text(written: bytes, zone: bytes | None, around: times.TimeContext) -> times.Moment | None:
        text = written.strip().decode(errors="replace")
        latest = around.written + times.DAY
        year = latest.astimezone(around.zone).year
        for candidate in (None,) if has_year else (year + 1, year, year - 1):
            try:
                if candidate is None:
                    at = datetime.strptime(text, format_of)
                else:
                    at = datetime.strptime(f"{candidate:04d} {text}", f"%Y {format_of}")
                moment = times.Moment(times.milliseconds(at)) if at.tzinfo else times.in_zone(at, zone, around.zone)
            except (ValueError, OverflowError):  # perhaps the 29th of February, which another year has
                continue
            if candidate is None or moment.timestamp_ms <= times.milliseconds(latest):
                return moment
        return None

    def moment(match: re.Match[bytes], around: times.TimeContext) -> times.Moment | None:
        if is_plain:
            _, written, fraction, zone = match.groups()
        else:
            written, (fraction, zone) = _for_strptime(match, names), match.groups()[-2:]
            zone = match["zone"].upper() if "Z" in names else zone
        second = of_text(written, zone, around)
        return second if fraction is None else times.with_fraction(second, fraction)

    return moment
