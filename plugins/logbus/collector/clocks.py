"""Which time format do a file's lines use? Chosen once for the file, from its first lines, or named by the user.

A file is written by one program, so nearly all of its lines use one time format, and now and then a second one (a banner, another
library). If two formats match nearly as many lines, the one that yields more about a line is preferred: a JSON object contains an
ISO time, and a host as well. A format that matches fewer than a tenth of the lines is data, not a clock: otherwise one message
that quotes a date would stamp the lines around it, and silently put them into an hour years away.

Lines that continue the one before (they are indented, as stack traces are, or empty) need no time. Of the others at least half
must have one, or the file is refused before any of it is sent: windows are cut by these times, and a line in the wrong hour is
not found again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from logbus.collector import line_reader
from logbus.collector.likely_times import likely_options
from logbus.collector.moments import TimeContext
from logbus.collector.timestamps import NO_STAMP, RECOGNISERS, Recogniser, Sought, Stamp, by_field, by_format, has_time
from logbus.errors import UndatedLog, UserError
from logbus.wording import many

AHEAD_MS_MAX = 3_600_000  # Kafka's default for message.timestamp.after.max.ms: a broker refuses times further ahead
LOOKED_AT_LINES = 1000  # a banner is shorter than this
SHARE_MIN = 0.1
SHARE_LIKE_MOST = 0.9  # counts as good as the most common one: a few lines of another kind make no difference
WORDS_MAX_IN_OTHERS = 1  # before the time, in lines that the file's first format does not date
# Abbreviations of zones that may follow a time (PostgreSQL writes them). They are not read: several stand for more than one zone,
# and none says when it began. UTC and GMT are read with the time.
ZONE_NAME = re.compile(
    rb"\d\d:\d\d:\d\d(?:[.,]\d+)? (WET|WEST|BST|CET|CEST|EET|EEST|MSK|TRT|SAST|IST|PKT|WIB|HKT|SGT|JST|KST|A[CEW][SD]T|NZ[SD]T|"
    rb"[ECMP][SD]T|AK[SD]T|HST|BRT|ART)\b"
)
UNDATED_KEPT = 20  # lines without a time, one of which may show how to read the others
SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    """The user's options about times: `format_of` in strptime's directives, `field` of a JSON or logfmt line, the `zone` of times
    that are written without one; `allows_undated`: a file without times may be sent."""

    format_of: str | None = None
    field: str | None = None
    zone: tzinfo = UTC
    allows_undated: bool = False

    def given(self) -> dict[str, Recogniser]:
        """The one format that was named, if any; `UserError` for an invalid format."""
        try:
            if self.field is not None:
                return {f"the field {self.field}": by_field(self.field, self.format_of)}
            return {} if self.format_of is None else {self.format_of: by_format(self.format_of)}
        except ValueError as error:
            raise UserError(f"the time format {self.format_of!r}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineClock:
    """How a file's lines record when they were written. `dated` of the `looked_at` lines had a time; `undated` are the first of
    those that had none, with their numbers."""

    names: tuple[str, ...]
    recognisers: tuple[Recogniser, ...]
    around: TimeContext
    looked_at: int = 0
    dated: int = 0
    undated: tuple[tuple[int, bytes], ...] = ()
    stamps: tuple[Stamp, ...] = ()  # of the dated lines
    zone_name: str | None = None  # an abbreviation next to their times, which is not read

    def stamp(self, line: bytes) -> Stamp:
        """The time and host that the line contains, if any."""
        for recogniser in self.recognisers:
            found = recogniser(line, self.around)
            if found is not None:
                return found
        return NO_STAMP

    @property
    def is_understood(self) -> bool:
        """Whether at least half of the lines have a time; True for a file without lines."""
        return self.dated * 2 >= self.looked_at

    def dates_enough(self, *, joins: bool) -> bool:
        """Whether enough lines have a time. If the others are joined to them, a record may have ten lines, as a trace has."""
        return self.is_understood or (joins and self.dated >= SHARE_MIN * self.looked_at)

    def ahead(self, now_ms: int) -> list[Stamp]:
        """Times that are not believed, because they are ahead of now."""
        return [one for one in self.stamps if one.timestamp_ms is not None and one.timestamp_ms > now_ms + AHEAD_MS_MAX]


def clock_of(path: Path, line_bytes_max: int, options: TimeOptions) -> LineClock:
    """The file's clock."""
    lines = line_reader.first_lines(path, LOOKED_AT_LINES, line_bytes_max)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return choose([line.text for line in lines if line.text is not None], TimeContext(options.zone, written), options)


def choose(lines: Sequence[bytes], around: TimeContext, options: TimeOptions) -> LineClock:
    """The time formats that these lines use, the most common first."""
    choices = options.given() or RECOGNISERS
    counted = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line[:1].isspace()]
    least = 0.0 if options.given() else SHARE_MIN * len(counted)
    counts = {name: sum(has_time(recogniser, line, around) for _, line in counted) for name, recogniser in choices.items()}
    most = max(counts.values())
    # If two match as many lines, the one that is first in the table wins: sorting is stable.
    ways = sorted(
        (name for name, count in counts.items() if count and count >= least),
        key=lambda name: -counts[name] if counts[name] < SHARE_LIKE_MOST * most else -len(counted),
    )
    clock, undated = LineClock(names=(), recognisers=(), around=around), counted
    for name in ways:
        recogniser = placed(choices[name], [line for _, line in undated], is_first=not clock.names)
        left = [(number, line) for number, line in undated if not has_time(recogniser, line, around)]
        if len(left) < len(undated):  # a format that dates no further lines is left out
            clock = replace(clock, names=(*clock.names, name), recognisers=(*clock.recognisers, recogniser))
            undated = left
    stamped = [(one, clock.stamp(one[1])) for one in counted]
    undated = [one for one, stamp in stamped if stamp.timestamp_ms is None]
    stamps = tuple(stamp for _, stamp in stamped if stamp.timestamp_ms is not None)
    named = Counter(match[1].decode() for (_, line), stamp in stamped if stamp.is_zoneless and (match := ZONE_NAME.search(line)))
    return replace(
        clock,
        looked_at=len(counted),
        dated=len(stamps),
        undated=tuple(undated[:UNDATED_KEPT]),
        stamps=stamps,
        zone_name=max(named, key=lambda name: named[name]) if named.total() * 2 > len(stamps) else None,
    )


def placed(recogniser: Recogniser, lines: Sequence[bytes], *, is_first: bool) -> Recogniser:
    """The recogniser, looking only where these lines have their time. Lines that the file's first format does not date are
    partly those that continue others: in these a date after more than a level or a thread's name is data."""
    if not isinstance(recogniser, Sought):
        return recogniser
    search = recogniser.search.as_in(lines)
    if not is_first and (search.words is None or search.words > WORDS_MAX_IN_OTHERS):
        search = replace(search, words=WORDS_MAX_IN_OTHERS, signs=None)
    return replace(recogniser, search=search)


def refuse_misdated(path: Path, clock: LineClock, now_ms: int, *, joins: bool = False) -> None:
    """Raises `UndatedLog`, with what was found and which option would help, if most lines have no time that is believed."""
    if (why := why_misdated(path, clock, now_ms, joins=joins)) is not None:
        raise UndatedLog(f"{why}. Nothing was sent")


def why_misdated(path: Path, clock: LineClock, now_ms: int, *, joins: bool = False) -> str | None:
    """Why most of the records would be sent with times that are not theirs, if that is so."""
    if not clock.dates_enough(joins=joins):
        return why_undated(path, clock)
    ahead = clock.ahead(now_ms)
    return why_ahead(path, clock, ahead) if len(ahead) * 2 > clock.dated else None


def why_ahead(path: Path, clock: LineClock, ahead: Sequence[Stamp]) -> str:
    zone = "it writes local time, whose zone --timezone Europe/Berlin names, or " if any(one.is_zoneless for one in ahead) else ""
    return (
        f"{path}: the times of {len(ahead)} of the first {many(clock.dated, 'line')} with one are more than an hour ahead of "
        f"now: {zone}a clock is wrong. `logbus try {path}` shows what is understood; --allow-undated sends such lines with the "
        "time of the line before, or if there is none, with that at which the file was last written"
    )


def why_undated(path: Path, clock: LineClock) -> str:
    """The error's text, with an option that would read one of the lines, if there is one."""
    found = ((one, options) for one in clock.undated if (options := likely_options(one[1], clock.around)))
    (number, line), options = next(found, (clock.undated[0] if clock.undated else (0, b""), ""))
    shown = line[:SHOWN_CHARACTERS].decode(errors="replace")
    some = f" ({', '.join(clock.names)} in the others)" if clock.names else ""
    how = (
        f"If that is its time, it is read by {options}"
        if options
        else "Say how it is written: --time-format '%d.%m.%Y %H:%M:%S', or in which field: --time-field NAME"
    )
    if clock.dates_enough(joins=True) and clock.dated:
        lines = "If such lines continue the one before them (a stack trace, a quoted field of CSV)"
        how += f". {lines}, --join-lines makes them one record"
    return (
        f"{path}: {clock.looked_at - clock.dated} of the first {many(clock.looked_at, 'line')} have no time that is understood"
        f"{some}, such as line {number}: {shown!r}. {how}. `logbus try {path}` shows what is understood; --allow-undated sends "
        "such lines with the time of the line before"
    )
