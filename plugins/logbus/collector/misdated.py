"""Why a file is refused before any of it is sent: its records would have times that are not theirs.

Windows are cut by these times, and a line in the wrong hour is not found again. So at least half of the lines must have a time,
and hardly any without one may look like those; nothing that is part of a time may stay unread beside it; and the newest time must
lie near that at which the file was last written. The error says what was found, and which option helps, or sends the file all the
same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from logbus.collector.clocks import LineClock, TimeOptions, is_alike_too_often
from logbus.collector.compressed import is_compressed
from logbus.collector.timestamps import Stamp, has_time
from logbus.errors import UndatedLog
from logbus.model import instant
from logbus.parsing.times import ABBREVIATION, DAY, ZONE, zone_of
from logbus.wording import many

SHOWN_CHARACTERS = 120
# A log is written until it is closed, and a rest of two months is rare: times further from the last writing are misread, or the
# file was copied. Of a compressed file only the beginning is looked at; it may cover a year.
APART_DAYS = 60
APART_DAYS_COMPRESSED = 400
_TIME_AND_ZONE = re.compile(rb"\d\d:\d\d:\d\d(?:[.,]\d+)?" + ZONE)
_ZONE_AND_MONTH = re.compile(rb"\b(" + ABBREVIATION + rb")\s+[A-Z][a-z]{2}\s+\d")
_TRY = "`logbus try {path}` shows what is understood; --allow-undated sends such lines with the time of the line before"


def refuse_misdated(path: Path, clock: LineClock, options: TimeOptions, now_ms: int, *, joins: bool = False) -> None:
    """Raises `UndatedLog`, with what was found and which option would help, if records would have times that are not theirs."""
    if (why := why_misdated(path, clock, options, now_ms, joins=joins)) is not None:
        raise UndatedLog(f"{why}. Nothing was sent")


def why_misdated(path: Path, clock: LineClock, options: TimeOptions, now_ms: int, *, joins: bool = False) -> str | None:
    """Why records would be sent with times that are not theirs, if that is so."""
    if not options.allows_undated and (why := why_borrowed(path, clock, now_ms, joins=joins)) is not None:
        return why
    if clock.unread is not None:
        return (
            f"{path}: the format {clock.names[0]!r} leaves {clock.unread} beside its times unread: --time-format has to name it. "
            f"`logbus try {path}` shows what is understood"
        )
    return None if options.accepts_times else why_far(path, clock)


def why_borrowed(path: Path, clock: LineClock, now_ms: int, *, joins: bool) -> str | None:
    """Why too many lines would be sent with the time of another line, if that is so."""
    if not clock.dates_enough(joins=joins):
        return why_undated(path, clock)
    if is_alike_too_often(clock):
        return why_alike(path, clock)
    ahead = clock.ahead(now_ms)
    return why_ahead(path, clock, ahead) if len(ahead) * 2 > clock.dated else None


def why_alike(path: Path, clock: LineClock) -> str:
    number, line = clock.first_alike or (0, b"")
    return (
        f"{path}: {clock.alike} of the first {many(clock.looked_at, 'line')} look like those with a time and have none that "
        f"is understood ({', '.join(clock.names)} in the others), such as line {number}: {_shown(line)}. {how_to_read(clock)}. "
        f"{_TRY.format(path=path)}"
    )


def why_far(path: Path, clock: LineClock) -> str | None:
    """Why the times are not believed, if they lie far from that at which the file was last written."""
    if clock.newest_ms is None:
        return None
    newest, written = instant(clock.newest_ms), clock.around.written
    if abs(written - newest) <= DAY * (APART_DAYS_COMPRESSED if is_compressed(path) else APART_DAYS):
        return None
    return (
        f"{path}: the newest of its times is {newest:%Y-%m-%d}, {abs(written - newest).days:,} days "
        f"{'before' if newest < written else 'after'} the file was last written ({written:%Y-%m-%d}): it was copied without its "
        f"date, or {' and '.join(clock.names)} is not how its times are written, which --time-format names. `logbus try {path}` "
        "shows how they are read; --accept-times sends them as they are"
    )


def why_ahead(path: Path, clock: LineClock, ahead: Sequence[Stamp]) -> str:
    zone = (
        "it writes local time, whose zone --timezone Europe/Berlin names, or "
        if any(stamp.is_zoneless for stamp in ahead)
        else ""
    )
    return (
        f"{path}: the times of {len(ahead)} of the first {many(clock.dated, 'line')} with one are more than an hour ahead of "
        f"now: {zone}a clock is wrong. {_TRY.format(path=path)}, or if there is none, with that of the file's last writing"
    )


def why_undated(path: Path, clock: LineClock) -> str:
    """The error's text, with an option that would read most of the lines, if there is one."""
    number, line = clock.undated[0] if clock.undated else (0, b"")
    first = f"the first {many(clock.looked_at, 'line')}"
    if clock.begins and not any(proposal.lines * 2 >= clock.looked_at for proposal in clock.proposals):
        return (
            f"{path}: {clock.dated} of {first} begin with a time ({clock.names[0]}), and the others have none, such as line "
            f"{number}: {_shown(line)}. If they continue the lines before them (a stack trace), --join-lines makes them one "
            f"record. {_TRY.format(path=path)}"
        )
    if clock.proposals:
        recogniser = clock.proposals[0].option.recogniser
        number, line = next((pair for pair in clock.undated if has_time(recogniser, pair[1], clock.around)), (number, line))
    others = f" ({', '.join(clock.names)} in the others)" if clock.names else ""
    how = how_to_read(clock)
    if clock.dates_enough(joins=True) and clock.dated:
        lines = "If such lines continue the one before them (a stack trace, a quoted field of CSV)"
        how += f". {lines}, --join-lines makes them one record"
    undated = clock.looked_at - clock.dated
    which = f"{undated} of {first} {'has' if undated == 1 else 'have'}"
    if clock.looked_at == 1:
        which = "its only line has"
    return (
        f"{path}: {which} no time that is understood{others}, such as line {number}: "
        f"{_shown(line)}. {how}. {_TRY.format(path=path)}"
    )


def how_to_read(clock: LineClock) -> str:
    """Which options would read the times."""
    if not clock.proposals:
        how = "Say how it is written: --time-format '%d.%m.%Y %H:%M:%S', or in which field: --time-field NAME"
        return zone_unread(clock) or how
    best, *others = clock.proposals
    reach = "" if best.lines * 2 >= clock.looked_at else f", as are those of {many(best.lines, 'line')} in all"
    other = f" ({others[0].option.text} reads as many lines, as other times: compare both)" if others else ""
    return f"If that is its time, it is read by {best.option.text}{reach}{other}"


def zone_unread(clock: LineClock) -> str | None:
    """Names what looks like a zone beside the times and cannot be read."""
    for _, line in clock.undated:
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


def _shown(line: bytes) -> str:
    return repr(line[:SHOWN_CHARACTERS].decode(errors="replace"))
