"""Which time format do a file's lines use? Chosen once for the file, from its first lines, or named by the user.

A file is written by one program, so nearly all of its lines use one time format, and now and then a second one (a banner, another
library). If two formats match nearly as many lines, the one that yields more about a line is preferred: a JSON object contains an
ISO time, and a host as well. A format that matches fewer than a tenth of the lines is data, not a clock: otherwise one message
that quotes a date would stamp the lines around it, and silently put them into an hour years away.

Lines that continue the one before (they are indented, as stack traces are, or empty) need no time, and are not looked at. What of
the others is not enough is decided in misdated.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from logbus.collector import line_reader
from logbus.collector.compressed import is_compressed
from logbus.collector.likely_times import Option, TimeProposal, proposals
from logbus.collector.timestamps import NO_STAMP, RECOGNISERS, Recogniser, Sought, Stamp, by_field, by_format, has_time
from logbus.errors import UserError
from logbus.parsing.times import TimeContext

AHEAD_MS_MAX = 3_600_000  # Kafka's default for message.timestamp.after.max.ms: a broker refuses times further ahead
LOOKED_AT_LINES = 1000  # a banner is shorter than this
SHARE_MIN = 0.1
SHARE_LIKE_MOST = 0.9  # counts as good as the most common one: a few lines of another kind make no difference
WORDS_MAX_IN_OTHERS = 1  # before the time, in lines that the file's first format does not date
BEGINS_SHARE_MIN = 0.01  # of the lines begin with a time: a record may have a hundred lines, as traces of frameworks have
ALIKE_SHARE = 1 / 6  # of the lines look like those with a time, and have none: then the format is not the one they are written in
ALIKE_CHARACTERS = 6  # of a line's shape; a date and an hour have more
TAIL_BYTES = 65_536  # of a file, in which its newest time is looked for
# `#Fields: date time ...` in W3C's extended format, `#fields\tts\tuid...` in Zeek's. All lines of such a file that begin with
# this sign are directives, and a short log may have more of them than rows.
FIELDS_DIRECTIVE = re.compile(rb"#fields:?[ \t]+(\S.*)", re.IGNORECASE | re.DOTALL)
DIRECTIVE = b"#"
UNDATED_KEPT = 50  # lines without a time, one of which may show how to read the others


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    """The user's options about times: `format_of` in strptime's directives, `field` of a JSON or logfmt line, the `zone` of times
    that are written without one, UTC if it is not named; `allows_undated`: a file without times may be sent; `accepts_times`: so
    may one whose times are far from the file's own."""

    format_of: str | None = None
    field: str | None = None
    zone: tzinfo | None = None
    allows_undated: bool = False
    accepts_times: bool = False

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
    unread: str | None = None  # what the named format leaves unread beside most of their times
    alike: int = 0  # lines without a time that look like those with one
    first_alike: tuple[int, bytes] | None = None  # with its number
    begins: bool = False  # few lines have a time, but those begin with it, and so does the file: the others may continue them
    proposals: tuple[TimeProposal, ...] = ()  # options that would read more; only if too few lines have a time
    newest_ms: int | None = None  # of the first lines and the last ones

    def stamp(self, line: bytes) -> Stamp:
        """The time and host that the line contains, if any."""
        for recogniser in self.recognisers:
            stamp = recogniser(line, self.around)
            if stamp is not None:
                return stamp
        return NO_STAMP

    @property
    def is_understood(self) -> bool:
        """Whether at least half of the lines have a time; True for a file without lines."""
        return self.dated * 2 >= self.looked_at

    def dates_enough(self, *, joins: bool) -> bool:
        """Whether enough lines have a time. If the others are joined to them, a record may have ten lines, as a trace has."""
        return self.is_understood or (joins and (self.begins or self.dated >= SHARE_MIN * self.looked_at))

    def ahead(self, now_ms: int) -> list[Stamp]:
        """Times that are not believed, because they are ahead of now."""
        return [one for one in self.stamps if one.timestamp_ms is not None and one.timestamp_ms > now_ms + AHEAD_MS_MAX]


def clock_of(path: Path, line_bytes_max: int, options: TimeOptions) -> LineClock:
    """The file's clock."""
    lines = line_reader.first_lines(path, LOOKED_AT_LINES, line_bytes_max)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    texts = [line.text for line in lines if line.text is not None]
    clock = choose(texts, TimeContext(options.zone or UTC, written), options)
    times = [stamp.timestamp_ms for stamp in (*clock.stamps, *map(clock.stamp, last_lines(path)))]
    return replace(clock, newest_ms=max((time for time in times if time is not None), default=None))


def last_lines(path: Path) -> list[bytes]:
    """The last lines of a file; none of a compressed one, which would have to be unpacked for them."""
    if is_compressed(path):
        return []
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - TAIL_BYTES)
        file.seek(start)
        lines = file.read(TAIL_BYTES).split(b"\n")
    return lines[1 if start else 0 : -1]


def choose(lines: Sequence[bytes], around: TimeContext, options: TimeOptions) -> LineClock:
    """The time formats that these lines use, the most common first; if too few have a time, with options that would help."""
    has_header = any(map(FIELDS_DIRECTIVE.match, lines))
    counted = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line[:1].isspace() and not (has_header and line.startswith(DIRECTIVE))
    ]
    given = options.given()
    clock = chosen(counted, around, given or RECOGNISERS, 0.0 if given else SHARE_MIN)
    if not clock.names and not given:
        clock = beginning(counted, around) or clock
    if clock.is_understood and not is_alike_too_often(clock):
        return clock

    def clock_by(option: Option) -> LineClock:
        return chosen(counted, around, {option.text: option.recogniser}, 0.0)

    texts = [line for _, line in counted]
    undated = [line for line in texts if clock.stamp(line).timestamp_ms is None]
    helpful = [proposal for proposal in proposals(texts, undated, around, clock_by) if proposal.lines > clock.dated]
    return replace(clock, proposals=tuple(helpful))


def chosen(
    counted: Sequence[tuple[int, bytes]], around: TimeContext, choices: Mapping[str, Recogniser], share: float
) -> LineClock:
    """Those of the choices that at least this share of the lines have, the most common first."""
    counts = {name: sum(has_time(recogniser, line, around) for _, line in counted) for name, recogniser in choices.items()}
    most = max(counts.values())
    # If two match as many lines, the one that is first in the table wins: sorting is stable.
    ways = sorted(
        (name for name, count in counts.items() if count and count >= share * len(counted)),
        key=lambda name: -counts[name] if counts[name] < SHARE_LIKE_MOST * most else -len(counted),
    )
    clock, undated = LineClock(names=(), recognisers=(), around=around), counted
    for name in ways:
        recogniser = placed(choices[name], [line for _, line in undated], is_first=not clock.names)
        left = [(number, line) for number, line in undated if not has_time(recogniser, line, around)]
        if len(left) < len(undated):  # a format that dates no further lines is left out
            clock = replace(clock, names=(*clock.names, name), recognisers=(*clock.recognisers, recogniser))
            undated = left
    return counting(clock, counted)


def beginning(counted: Sequence[tuple[int, bytes]], around: TimeContext) -> LineClock | None:
    """The clock of a file few of whose lines have a time, if the first line and those begin with one of the same format, and no
    other format begins any: the lines between them may continue them, although they are not indented."""
    clocks = []
    for name, recogniser in RECOGNISERS.items():
        if isinstance(recogniser, Sought):
            recogniser = replace(recogniser, search=recogniser.search.at_beginning())
        if any(has_time(recogniser, line, around) for _, line in counted):
            clocks.append(counting(LineClock(names=(name,), recognisers=(recogniser,), around=around), counted))
    if len(clocks) != 1 or clocks[0].stamp(counted[0][1]).timestamp_ms is None:
        return None
    return replace(clocks[0], begins=True) if clocks[0].dated >= max(2, BEGINS_SHARE_MIN * len(counted)) else None


def counting(clock: LineClock, counted: Sequence[tuple[int, bytes]]) -> LineClock:
    """The clock, with what it makes of these lines."""
    stamped = [(numbered, clock.stamp(numbered[1])) for numbered in counted]
    dated = [line for (_, line), stamp in stamped if stamp.timestamp_ms is not None]
    undated = [numbered for numbered, stamp in stamped if stamp.timestamp_ms is None]
    shapes = {shape for line in dated if (shape := shape_of(line)) is not None}
    beside = Counter(
        unread
        for recogniser in clock.recognisers
        if isinstance(recogniser, Sought)
        for line in dated
        if (unread := recogniser.unread(line)) is not None
    )
    stamps = tuple(stamp for _, stamp in stamped if stamp.timestamp_ms is not None)
    alike = [numbered for numbered in undated if shape_of(numbered[1]) in shapes]
    return replace(
        clock,
        looked_at=len(counted),
        dated=len(stamps),
        undated=tuple(undated[:UNDATED_KEPT]),
        stamps=stamps,
        unread=max(beside, key=lambda piece: beside[piece]) if beside.total() * 2 > len(stamps) else None,
        alike=len(alike),
        first_alike=alike[0] if alike else None,
    )


def shape_of(line: bytes) -> bytes | None:
    """How a line begins, with one sign for each word and each number, two for a long one; None if that has no number."""
    shape = re.sub(rb"\d+", lambda number: b"9" if len(number[0]) < 5 else b"99", line[:80])
    shape = re.sub(rb"[A-Za-z]+", b"a", shape)[:ALIKE_CHARACTERS]
    return shape if b"9" in shape else None


def is_alike_too_often(clock: LineClock) -> bool:
    return clock.alike > 0 and clock.alike >= ALIKE_SHARE * clock.looked_at


def placed(recogniser: Recogniser, lines: Sequence[bytes], *, is_first: bool) -> Recogniser:
    """The recogniser, looking only where these lines have their time. Lines that the file's first format does not date are
    partly those that continue others: in these a date after more than a level or a thread's name is data."""
    if not isinstance(recogniser, Sought):
        return recogniser
    search = recogniser.search.as_in(lines)
    if not is_first and (search.words is None or search.words > WORDS_MAX_IN_OTHERS):
        search = replace(search, words=WORDS_MAX_IN_OTHERS, signs=None)
    return replace(recogniser, search=search)
