"""Which time format do a file's lines use? Chosen once for the file, from its first lines, or named by the user.

A file is written by one program, so nearly all of its lines use one time format, and now and then a second one (a banner, another
library). If two formats match nearly as many lines, the one that yields more about a line is preferred: a JSON object contains an
ISO time, and a host as well. A format that matches fewer than a tenth of the lines is data: otherwise one message that quotes a
date would stamp the lines around it, and silently put them into an hour years away. Lines that continue the one before (they are
indented, as stack traces are, or empty) need no time, and are not looked at.

A file is rejected before any of it is sent if its records would have times that are not theirs. Windows are cut by these times,
and a line in the wrong hour is not found again. So at least half of the lines must have a time, and hardly any without one may
look like those; nothing that is part of a time may stay unread beside it; and the newest time must lie near that at which the
file was last written. The error says what was read, and which option helps, or sends the file all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from logbus import errors, formatting, model
from logbus.parsing.times import ABBREVIATION, DAY, ZONE, TimeContext, zone_of
from logbus.shipper import line_reader
from logbus.shipper.line_reader import is_compressed
from logbus.shipper.line_timestamps import (
    NO_STAMP,
    RECOGNISERS,
    Recogniser,
    SearchingRecogniser,
    Stamp,
    by_field,
    by_format,
    has_time,
)
from logbus.shipper.timestamp_suggestions import Option, TimestampSuggestion, suggestions

AHEAD_MS_MAX = 3_600_000  # Kafka's default for message.timestamp.after.max.ms: a broker rejects times further ahead
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
            raise errors.UserError(f"the time format {self.format_of!r}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampExtractor:
    """Reads from a line of one file when it was written. `dated` of the `looked_at` lines had a time; `undated` are the first of
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
    suggestions: tuple[TimestampSuggestion, ...] = ()  # options that would read more; only if too few lines have a time
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
        return [stamp for stamp in self.stamps if stamp.timestamp_ms is not None and stamp.timestamp_ms > now_ms + AHEAD_MS_MAX]


def extractor_for(path: Path, line_bytes_max: int, options: TimeOptions) -> TimestampExtractor:
    """How this file's lines record their time, with the newest time in it."""
    lines = line_reader.first_lines(path, LOOKED_AT_LINES, line_bytes_max)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    texts = [line.text for line in lines if line.text is not None]
    extractor = detect(texts, TimeContext(options.zone or UTC, written), options)
    times = [stamp.timestamp_ms for stamp in (*extractor.stamps, *map(extractor.stamp, _last_lines(path)))]
    return replace(extractor, newest_ms=max((time for time in times if time is not None), default=None))


def _last_lines(path: Path) -> list[bytes]:
    """The last lines of a file; none of a compressed one, which would have to be unpacked for them."""
    if is_compressed(path):
        return []
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - TAIL_BYTES)
        file.seek(start)
        lines = file.read(TAIL_BYTES).split(b"\n")
    return lines[1 if start else 0 : -1]


def detect(lines: Sequence[bytes], around: TimeContext, options: TimeOptions) -> TimestampExtractor:
    """The time formats that these lines use, the most common first; if too few have a time, with options that would help."""
    has_header = any(map(FIELDS_DIRECTIVE.match, lines))
    numbered_lines = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line[:1].isspace() and not (has_header and line.startswith(DIRECTIVE))
    ]
    given = options.given()
    extractor = _extractor_among(numbered_lines, around, given or RECOGNISERS, 0.0 if given else SHARE_MIN)
    if not extractor.names and not given:
        extractor = _extractor_of_beginnings(numbered_lines, around) or extractor
    if extractor.is_understood and not _is_alike_too_often(extractor):
        return extractor

    def read_by(option: Option) -> tuple[Sequence[Stamp], str | None]:
        tried = _extractor_among(numbered_lines, around, {option.text: option.recogniser}, 0.0)
        return tried.stamps, tried.unread

    texts = [line for _, line in numbered_lines]
    undated = [line for line in texts if extractor.stamp(line).timestamp_ms is None]
    better = [suggestion for suggestion in suggestions(texts, undated, around, read_by) if suggestion.lines > extractor.dated]
    return replace(extractor, suggestions=tuple(better))


def _extractor_among(
    numbered_lines: Sequence[tuple[int, bytes]], around: TimeContext, choices: Mapping[str, Recogniser], share: float
) -> TimestampExtractor:
    """Those of the choices that at least this share of the lines have, the most common first."""
    counts = {name: sum(has_time(recogniser, line, around) for _, line in numbered_lines) for name, recogniser in choices.items()}
    most = max(counts.values())
    # If two match as many lines, the one that is first in the table wins: sorting is stable.
    ways = sorted(
        (name for name, count in counts.items() if count and count >= share * len(numbered_lines)),
        key=lambda name: -counts[name] if counts[name] < SHARE_LIKE_MOST * most else -len(numbered_lines),
    )
    extractor, undated = TimestampExtractor(names=(), recognisers=(), around=around), numbered_lines
    for name in ways:
        recogniser = _narrowed(choices[name], [line for _, line in undated], is_first=not extractor.names)
        left = [(number, line) for number, line in undated if not has_time(recogniser, line, around)]
        if len(left) < len(undated):  # a format that dates no further lines is left out
            extractor = replace(extractor, names=(*extractor.names, name), recognisers=(*extractor.recognisers, recogniser))
            undated = left
    return _with_counts(extractor, numbered_lines)


def _extractor_of_beginnings(numbered_lines: Sequence[tuple[int, bytes]], around: TimeContext) -> TimestampExtractor | None:
    """The extractor for a file few of whose lines have a time, if the first line and those begin with one of the same format, and
    no other format begins any: the lines between them may continue them, although they are not indented."""
    extractors = []
    for name, recogniser in RECOGNISERS.items():
        if isinstance(recogniser, SearchingRecogniser):
            recogniser = replace(recogniser, search=recogniser.search.at_beginning())
        if any(has_time(recogniser, line, around) for _, line in numbered_lines):
            extractors.append(
                _with_counts(TimestampExtractor(names=(name,), recognisers=(recogniser,), around=around), numbered_lines)
            )
    if len(extractors) != 1 or extractors[0].stamp(numbered_lines[0][1]).timestamp_ms is None:
        return None
    return replace(extractors[0], begins=True) if extractors[0].dated >= max(2, BEGINS_SHARE_MIN * len(numbered_lines)) else None


def _with_counts(extractor: TimestampExtractor, numbered_lines: Sequence[tuple[int, bytes]]) -> TimestampExtractor:
    """The extractor, with what it reads of these lines."""
    stamped = [(numbered, extractor.stamp(numbered[1])) for numbered in numbered_lines]
    dated = [line for (_, line), stamp in stamped if stamp.timestamp_ms is not None]
    undated = [numbered for numbered, stamp in stamped if stamp.timestamp_ms is None]
    shapes = {shape for line in dated if (shape := _shape_of(line)) is not None}
    beside = Counter(
        unread
        for recogniser in extractor.recognisers
        if isinstance(recogniser, SearchingRecogniser)
        for line in dated
        if (unread := recogniser.unread(line)) is not None
    )
    stamps = tuple(stamp for _, stamp in stamped if stamp.timestamp_ms is not None)
    alike = [numbered for numbered in undated if _shape_of(numbered[1]) in shapes]
    return replace(
        extractor,
        looked_at=len(numbered_lines),
        dated=len(stamps),
        undated=tuple(undated[:UNDATED_KEPT]),
        stamps=stamps,
        unread=max(beside, key=lambda piece: beside[piece]) if beside.total() * 2 > len(stamps) else None,
        alike=len(alike),
        first_alike=alike[0] if alike else None,
    )


def _shape_of(line: bytes) -> bytes | None:
    """How a line begins, with one sign for each word and each number, two for a long one; None if that has no number."""
    shape = re.sub(rb"\d+", lambda number: b"9" if len(number[0]) < 5 else b"99", line[:80])
    shape = re.sub(rb"[A-Za-z]+", b"a", shape)[:ALIKE_CHARACTERS]
    return shape if b"9" in shape else None


def _is_alike_too_often(extractor: TimestampExtractor) -> bool:
    return extractor.alike > 0 and extractor.alike >= ALIKE_SHARE * extractor.looked_at


def _narrowed(recogniser: Recogniser, lines: Sequence[bytes], *, is_first: bool) -> Recogniser:
    """The recogniser, looking only where these lines have their time. Lines that the file's first format does not date are
    partly those that continue others: in these a date after more than a level or a thread's name is data."""
    if not isinstance(recogniser, SearchingRecogniser):
        return recogniser
    search = recogniser.search.as_in(lines)
    if not is_first and (search.words is None or search.words > WORDS_MAX_IN_OTHERS):
        search = replace(search, words=WORDS_MAX_IN_OTHERS, signs=None)
    return replace(recogniser, search=search)


SHOWN_CHARACTERS = 120
# A log is written until it is closed, and a rest of two months is rare: times further from the last writing are misread, or the
# file was copied. Of a compressed file only the beginning is looked at; it may cover a year.
APART_DAYS = 60
APART_DAYS_COMPRESSED = 400
_TIME_AND_ZONE = re.compile(rb"\d\d:\d\d:\d\d(?:[.,]\d+)?" + ZONE)
_ZONE_AND_MONTH = re.compile(rb"\b(" + ABBREVIATION + rb")\s+[A-Z][a-z]{2}\s+\d")
_TRY = "`logbus try {path}` shows what is understood; --allow-undated sends such lines with the time of the line before"


def validate_timestamps(
    path: Path, extractor: TimestampExtractor, options: TimeOptions, now_ms: int, *, joins: bool = False
) -> None:
    """Raises `UndatedLog`, with the reason and which option would help, if records would have times that are not theirs."""
    if (why := timestamp_problem(path, extractor, options, now_ms, joins=joins)) is not None:
        raise errors.UndatedLog(f"{why}. Nothing was sent")


def timestamp_problem(
    path: Path, extractor: TimestampExtractor, options: TimeOptions, now_ms: int, *, joins: bool = False
) -> str | None:
    """Why records would be sent with times that are not theirs, if that is so."""
    if not options.allows_undated and (why := _why_borrowed(path, extractor, now_ms, joins=joins)) is not None:
        return why
    if extractor.unread is not None:
        return (
            f"{path}: the format {extractor.names[0]!r} leaves {extractor.unread} beside its times unread: add it to "
            f"--time-format. `logbus try {path}` shows what is understood"
        )
    return None if options.accepts_times else _why_far(path, extractor)


def _why_borrowed(path: Path, extractor: TimestampExtractor, now_ms: int, *, joins: bool) -> str | None:
    """Why too many lines would be sent with the time of another line, if that is so."""
    if not extractor.dates_enough(joins=joins):
        return _why_undated(path, extractor)
    if _is_alike_too_often(extractor):
        return _why_alike(path, extractor)
    ahead = extractor.ahead(now_ms)
    return _why_ahead(path, extractor, ahead) if len(ahead) * 2 > extractor.dated else None


def _why_alike(path: Path, extractor: TimestampExtractor) -> str:
    number, line = extractor.first_alike or (0, b"")
    return (
        f"{path}: {_counted(extractor.alike, extractor.looked_at, 'looks', 'look')} like those with a time, without one that is "
        f"understood ({', '.join(extractor.names)} in the others), such as line {number}: {_shown(line)}. "
        f"{_how_to_read(extractor)}. {_TRY.format(path=path)}"
    )


def _why_far(path: Path, extractor: TimestampExtractor) -> str | None:
    """Why the times are not believed, if they lie far from that at which the file was last written."""
    if extractor.newest_ms is None:
        return None
    newest, written = model.instant(extractor.newest_ms), extractor.around.written
    if abs(written - newest) <= DAY * (APART_DAYS_COMPRESSED if is_compressed(path) else APART_DAYS):
        return None
    return (
        f"{path}: the newest of its times is {newest:%Y-%m-%d}, {abs(written - newest).days:,} days "
        f"{'before' if newest < written else 'after'} the file was last written ({written:%Y-%m-%d}): it was copied without its "
        f"date, or {' and '.join(extractor.names)} is not how its times are written, which --time-format names. `logbus try "
        f"{path}` shows how they are read; --accept-times sends them as they are"
    )


def _why_ahead(path: Path, extractor: TimestampExtractor, ahead: Sequence[Stamp]) -> str:
    zone = (
        "it writes local time, whose zone --timezone Europe/Berlin names, or "
        if any(stamp.is_zoneless for stamp in ahead)
        else ""
    )
    times = "its only time is" if extractor.dated == 1 else f"{len(ahead)} of its first {extractor.dated} times are"
    return (
        f"{path}: {times} more than an hour ahead of now: {zone}a clock is wrong. {_TRY.format(path=path)}, or if there is none, "
        "with that of the file's last writing"
    )


def _why_undated(path: Path, extractor: TimestampExtractor) -> str:
    """The error's text, with an option that would read most of the lines, if there is one."""
    number, line = extractor.undated[0] if extractor.undated else (0, b"")
    if extractor.begins and not any(suggestion.lines * 2 >= extractor.looked_at for suggestion in extractor.suggestions):
        return (
            f"{path}: {extractor.dated} of the first {extractor.looked_at} lines begin with a time ({extractor.names[0]}), and "
            f"the others have none, such as line {number}: {_shown(line)}. If they continue the lines before them (a stack "
            f"trace), --join-lines makes them one record. {_TRY.format(path=path)}"
        )
    if extractor.suggestions:
        recogniser = extractor.suggestions[0].option.recogniser
        number, line = next(
            (pair for pair in extractor.undated if has_time(recogniser, pair[1], extractor.around)), (number, line)
        )
    others = f" ({', '.join(extractor.names)} in the others)" if extractor.names else ""
    how = _how_to_read(extractor)
    if extractor.dates_enough(joins=True) and extractor.dated:
        lines = "If such lines continue the one before them (a stack trace, a quoted field of CSV)"
        how += f". {lines}, --join-lines makes them one record"
    example = f", such as line {number}" if extractor.looked_at > 1 else ""
    return (
        f"{path}: {_counted(extractor.looked_at - extractor.dated, extractor.looked_at, 'has', 'have')} no time that is "
        f"understood{others}{example}: {_shown(line)}. {how}. {_TRY.format(path=path)}"
    )


def _how_to_read(extractor: TimestampExtractor) -> str:
    """Which options would read the times."""
    if not extractor.suggestions:
        how = "Say how it is written: --time-format '%d.%m.%Y %H:%M:%S', or in which field: --time-field NAME"
        return _zone_unread(extractor) or how
    best, *others = extractor.suggestions
    reach = "" if best.lines * 2 >= extractor.looked_at else f", as are those of {formatting.many(best.lines, 'line')} in all"
    other = f" ({others[0].option.text} reads as many lines, as other times: compare both)" if others else ""
    return f"If that is its time, it is read by {best.option.text}{reach}{other}"


def _zone_unread(extractor: TimestampExtractor) -> str | None:
    """Names what looks like a zone beside the times and cannot be read."""
    for _, line in extractor.undated:
        for match in (*_TIME_AND_ZONE.finditer(line), *_ZONE_AND_MONTH.finditer(line)):
            try:
                if match[1] is None or zone_of(match[1]) is not None:
                    continue
            except ValueError as error:
                return f"Its zone cannot be read: {error}"
            name = match[1].decode()
            return (
                f"Its zone {name} is not read, because such names are ambiguous, unless --timezone names a zone that is called "
                "so at that time, such as Europe/Berlin for CET"
            )
    return None


def _counted(count: int, total: int, verb_of_one: str, verb_of_several: str) -> str:
    if total == 1:
        return f"its only line {verb_of_one}"
    return f"{count} of the first {total} lines {verb_of_one if count == 1 else verb_of_several}"


def _shown(line: bytes) -> str:
    return repr(line[:SHOWN_CHARACTERS].decode(errors="replace"))
