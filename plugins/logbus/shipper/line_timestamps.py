"""When was a log line written, and for which host? A table of recognisers, each for one line format.

A recogniser takes the line's bytes and the `TimeContext` of its file, and returns a `Stamp`, or None if the line is not of its
kind. parsing/times.py converts the written time, which may lack a zone or a year. `host` is the origin that a line names, the
natural key of the record: the client of an access log, the machine of a syslog line, the host field of a JSON line.

Nothing here guesses: the recognisers that read a file's lines are chosen once for the file (timestamp_extractor.py), by what most
of its lines are. If all were tried on every line, a date in a message would be taken for the time of that line and of those after
it. For the same reason a time that is searched for near a line's beginning has its position in most lines of the file: an
exception's text quotes the dates that it is about (`Key (at)=(2015-01-01 00:00:00) already exists.`).

Called for every line, so the regular expressions are anchored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from logbus.parsing import times
from logbus.shipper.strptime_formats import WrittenFormat, compiled, zone_before

LINE_START_BYTES = 160  # a time further inside is more likely data than the line's own stamp
# What share of the dates must have one position for the others to be data. In a log of errors most lines with a date may be
# those of exceptions, and a date at the very beginning is hardly ever data. A position after words is less certain.
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
        """Whether the matched time is that of its line."""
        if self.words is None or self.at_first is not None or _words_before(match) <= self.words:
            return True
        return self.signs is not None and _signs_around(match) == self.signs

    def as_in(self, lines: Sequence[bytes]) -> LineTimeSearch:
        """The same for a file with these lines: the position of most of their times, if they have one in common."""
        matches = [match for line in lines if (match := self.form.search(line, 0, LINE_START_BYTES))]
        if not matches:
            return self
        counts = Counter(map(_words_before, matches))
        words = min(counts, key=lambda number: (-counts[number], number))
        if counts[0] >= SHARE_AT_FIRST * len(matches) and counts[0] >= counts[1]:  # after one word: a level perhaps, not data
            return self.at_beginning()
        signs_of_most = [_signs_around(match) for match in matches if _words_before(match) == words]
        (signs, often), *_ = Counter(signs_of_most).most_common(1)
        placed = replace(self, words=words, signs=signs if often >= SHARE_AFTER_WORDS * len(signs_of_most) else None)
        return placed if sum(map(placed.is_own, matches)) >= SHARE_AFTER_WORDS * len(matches) else self

    def at_beginning(self) -> LineTimeSearch:
        """The same, with nothing but signs before the time."""
        return replace(self, words=0, at_first=re.compile(_SIGNS + rb"(?:%b)" % self.form.pattern))


def _words_before(match: re.Match[bytes]) -> int:
    """How many words precede the time; a bracket or quote that it is in is none."""
    before = re.sub(_COLOUR, b"", match.string[: match.start(1)])
    words = before.split()
    return len(words) - bool(words and not before[-1:].isspace() and not re.search(rb"\w", words[-1]))


def _signs_around(match: re.Match[bytes]) -> tuple[bytes, bytes] | None:
    """The sign before the time, across spaces, and the character after it; None if a word precedes."""
    start, end = match.span(1)
    before = match.string[:start].rstrip()[-1:]
    return None if not before or re.match(rb"\w", before) else (before, match.string[end : end + 1])


_COMBINED = re.compile(rb"([^\s,]+),? \S+ [^\[]*\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")
# Apache's vhost_combined has a virtual host and its port first; the client's address, which is never a `-`, comes next.
_VIRTUAL_HOST = re.compile(rb"[^\s:]+:\d{1,5} ([^\s-]\S*) \S+ [^\[]*\S \[")
_COLON = ord(":")  # looking for a byte string takes a fifth of this recogniser's time, for a number next to nothing
# A year may follow, as daemons that add one write it; it is not taken for the host.
_SYSLOG = re.compile(
    rb"(?:<\d{1,3}>)?([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d)(?:\.(\d+))?(?: ((?:19|20)\d\d)(?= ))?"
    + times.ZONE
    + rb" (?:(\S*[^\s:]) )?"
)
_SYSLOG_5424 = re.compile(rb"<\d{1,3}>1 (\S+) (\S+) ")
# rsyslog's own format, as in /var/log/syslog of current distributions. A line with a level in place of the host is not syslog.
_SYSLOG_ISO = re.compile(
    rb"(?:<\d{1,3}>)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?(?:Z|[+-]\d\d:?\d\d)) "
    rb"(?!(?i:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b)([A-Za-z0-9][\w.-]*) [^\s:\[\]]+(?:\[\d+\])?:(?: |$)"
)
_KLOG = re.compile(rb"[IWEF](\d\d)(\d\d) +(\d\d):(\d\d):(\d\d)\.(\d{1,9}) +\d+ ")
# Year, month, day. The American order, month first, looks the same and needs `--time-format`.
_SLASHED = re.compile(rb"\[?(\d\d(?:\d\d)?)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)" + times.TAIL)
# Hadoop logs always have a thread number next. Without it, any two six-digit numbers at the start of a line would be a time.
_DIGITS = re.compile(rb"(\d\d)(\d\d)(\d\d) (\d\d)(\d\d)(\d\d) \d+ ")
_APACHE_ERROR = re.compile(rb"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? (\d{4})\]")
_DAY_MONTH = re.compile(rb"\[?(\d{1,2})[ -]([A-Z][a-z]{2})[ -](\d{4}) (\d\d):(\d\d):(\d\d)" + times.TAIL)
_CLOCK_IN_FIELD = re.compile(rb"[=:]\s*\"?\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\"?(?=[\s,}]|$)")
_TIME_FIELDS = ("timestamp", "@timestamp", "time", "ts", "datetime", "date", "time_iso8601", "time_local", "msec", "asctime", "t")
_HOST_FIELDS = ("host", "hostname")
_EPOCH_FIRST_OR_FIELD = re.compile(
    rb"(?:^\[?(?=%b(?![\d.]))|(?:^|(?<=[ ,]))(?:ts|time|timestamp|t)=\"?(?=%b\"?(?:[ ,]|$)))(%b)"
    % (3 * (times.EPOCH_DIGITS.encode(),))
)


class Stamp(NamedTuple):
    """The time and host that a line contains; both may be absent."""

    timestamp_ms: int | None
    host: bytes | None
    is_zoneless: bool = False
    again_ms: int | None = None


Recogniser = Callable[[bytes, times.TimeContext], Stamp | None]

NO_STAMP = Stamp(None, None)


def has_time(recogniser: Recogniser, line: bytes, around: times.TimeContext) -> bool:
    stamp = recogniser(line, around)
    return stamp is not None and stamp.timestamp_ms is not None


def combined(line: bytes, around: times.TimeContext = times.TimeContext()) -> Stamp | None:  # noqa: B008  # immutable
    """The access-log formats, common and combined: `host ident user [17/May/2015:10:05:03 +0000] ...`; always with a zone."""
    match = _COMBINED.match(line)
    if match is None:
        return None
    host, written = match.groups()
    if _COLON in host and (behind := _VIRTUAL_HOST.match(line)) is not None:
        host = behind[1]
    return Stamp(times.combined_time_ms(written), host)


def json_object(line: bytes, around: times.TimeContext) -> Stamp | None:
    """A JSON object with the usual field names for time and host; `host` may be an object with a name."""
    fields = _fields(line)
    if fields is None:
        return None
    host = _first(fields, _HOST_FIELDS, _host_name)
    moment = _first(fields, _TIME_FIELDS, lambda value: times.any_time(value, around.zone))
    return Stamp(None, host) if moment is None else _stamp(moment, host)


def _syslog(line: bytes, around: times.TimeContext) -> Stamp | None:
    """RFC 3164: `May 17 10:05:03 web1 sshd[7]: ...`, as syslog daemons write to files; usually without year or zone."""
    match = _SYSLOG.match(line)
    if match is None:
        return None
    written, fraction, year, zone, host = match.groups()
    moment = _syslog_second(written, year, zone, around)
    return _stamp(moment if fraction is None else times.with_fraction(moment, fraction), host)


@lru_cache(times.STAMPS_REMEMBERED)
def _syslog_second(written: bytes, year: bytes | None, zone: bytes | None, around: times.TimeContext) -> times.Moment | None:
    month, (day, hour, minute, second) = times.MONTHS.get(written[:3], 0), map(int, re.findall(rb"\d+", written))
    if year is None:
        return times.without_year(month, day, hour, minute, second, zone, around)
    return times.second_of(int(year), month, day, hour, minute, second, zone, around.zone)


def _syslog_5424(line: bytes, around: times.TimeContext) -> Stamp | None:
    """RFC 5424: `<34>1 2015-05-17T10:05:03.5Z web1 sshd 7 - - ...`; a `-` means that time or host is unknown."""
    match = _SYSLOG_5424.match(line)
    if match is None:
        return None
    time, host = match.groups()
    moment = times.iso_time(time, around.zone)
    host = None if host == b"-" else host
    return Stamp(None, host) if moment is None else _stamp(moment, host)


def _syslog_iso(line: bytes, around: times.TimeContext) -> Stamp | None:
    """`2015-05-17T10:05:03.123456+02:00 web1 sshd[7]: ...`, as rsyslog writes to files unless set to the old format."""
    match = _SYSLOG_ISO.match(line)
    return None if match is None else _stamp(times.iso_time(match[1], around.zone), match[2])


def _klog(line: bytes, around: times.TimeContext) -> Stamp | None:
    """The format of Kubernetes and Google: `I0517 10:05:03.123456       7 file.go:12] ...`; without year or zone."""
    match = _KLOG.match(line)
    if match is None:
        return None
    *numbers, fraction = match.groups()
    month, day, hour, minute, second = map(int, numbers)
    return _stamp(times.with_fraction(times.without_year(month, day, hour, minute, second, None, around), fraction))


def _slashed(line: bytes, around: times.TimeContext) -> Stamp | None:
    """`15/05/17 10:05:03 INFO ...` as Spark writes, `2015/05/17 10:05:03 [error] ...` as nginx and Go do."""
    match = _SLASHED.match(line)
    if match is None:
        return None
    year, *numbers, fraction, zone = match.groups()
    month, day, hour, minute, second = map(int, numbers)
    return _stamp(
        times.with_fraction(times.second_of(times.full_year(year), month, day, hour, minute, second, zone, around.zone), fraction)
    )


def _digits(line: bytes, around: times.TimeContext) -> Stamp | None:
    """`150517 100503 143 INFO dfs.DataNode: ...`, as Hadoop's daemons write; without a zone."""
    match = _DIGITS.match(line)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups()[1:])
    return _stamp(times.second_of(times.full_year(match[1]), month, day, hour, minute, second, None, around.zone))


def _apache_error(line: bytes, around: times.TimeContext) -> Stamp | None:
    """`[Sun May 17 10:05:03.123456 2015] [core:error] ...`: Apache's error log; without a zone."""
    match = _APACHE_ERROR.match(line)
    if match is None or match[1] not in times.MONTHS:
        return None
    month, *numbers, fraction, year = match.groups()
    day, hour, minute, second = map(int, numbers)
    return _stamp(
        times.with_fraction(
            times.second_of(int(year), times.MONTHS[month], day, hour, minute, second, None, around.zone), fraction
        )
    )


def _day_month(line: bytes, around: times.TimeContext) -> Stamp | None:
    """`17 May 2015 10:05:03,123 INFO ...`: log4j's DATE, PHP, and others that write the month as a word."""
    match = _DAY_MONTH.match(line)
    if match is None or match[2] not in times.MONTHS:
        return None
    day, month, *numbers, fraction, zone = match.groups()
    year, hour, minute, second = map(int, numbers)
    return _stamp(
        times.with_fraction(
            times.second_of(year, times.MONTHS[month], int(day), hour, minute, second, zone, around.zone), fraction
        )
    )


@dataclass(frozen=True, slots=True)
class SearchingRecogniser:
    """A recogniser of a time near the line's beginning. `search` knows where the lines of its file have it (`LineTimeSearch`);
    `written` is the format that the user named, or that is tried."""

    search: LineTimeSearch
    read: Callable[[re.Match[bytes], times.TimeContext], times.Moment | None]
    written: WrittenFormat | None = None

    def __call__(self, line: bytes, around: times.TimeContext) -> Stamp | None:
        at_first = self.search.at_first  # nearly all logs: a call less
        match = self.match(line) if at_first is None else at_first.match(line, 0, LINE_START_BYTES)
        if match is None:
            return None
        moment = self.read(match, around)
        return None if moment is None else tuple.__new__(Stamp, (moment[0], None, moment[1], moment[2]))  # as in with_fraction

    def match(self, line: bytes) -> re.Match[bytes] | None:
        """Where the line has its time; the first group is all of it."""
        search = self.search
        if search.at_first is not None:
            return search.at_first.match(line, 0, LINE_START_BYTES)
        match = search.form.search(line, 0, LINE_START_BYTES)
        return match if match is not None and search.is_own(match) else None

    def unread(self, line: bytes) -> str | None:
        """What stays unread beside the time although it is a part of it: an hour, a year, a zone."""
        if (match := self.match(line)) is None:
            return None
        before, behind = line[: match.start(1)], line[match.end(1) : LINE_START_BYTES]
        return zone_before(before) if self.written is None else self.written.unread(before, behind)


def _iso_moment(match: re.Match[bytes], around: times.TimeContext) -> times.Moment | None:
    _, second, fraction, zone = match.groups()
    moment = times.iso_second(second, zone, around.zone)
    return moment if fraction is None else times.with_fraction(moment, fraction)


# A date and time, as most application logs write it.
iso_8601 = SearchingRecogniser(LineTimeSearch(re.compile(rb"(%b)" % times.ISO_8601)), _iso_moment)
# A number since 1970 at the line's beginning, or as the field of a logfmt line: in seconds or smaller units, by its size.
epoch = SearchingRecogniser(LineTimeSearch(_EPOCH_FIRST_OR_FIELD), lambda match, around: times.epoch_moment(match[1]))


# In order of preference when several match as many lines: the more specific a format, the earlier.
# An access log's line also begins with a number, if the client's address is written as one; a JSON object may contain all the
# others. The epoch comes last: it is the least specific form.
RECOGNISERS: Mapping[str, Recogniser] = {
    "access log": combined,
    "JSON": json_object,
    "syslog (RFC 5424)": _syslog_5424,
    "syslog (RFC 3164)": _syslog,
    "syslog (ISO 8601)": _syslog_iso,
    "klog": _klog,
    "Apache's error log": _apache_error,
    "YY/MM/DD": _slashed,
    "DD Mon YYYY": _day_month,
    "YYMMDD HHMMSS": _digits,
    "ISO 8601": iso_8601,
    "seconds since 1970": epoch,
}


def by_field(name: str, format_of: str | None = None) -> Recogniser:
    """A field of JSON objects (`a.b` for a nested one) or of logfmt lines, in any of the forms above, or by `format_of`."""
    in_text = re.compile(rb"(?:^|[ ,])%b=(?:\"([^\"]*)\"|(\S+))" % re.escape(name.encode()))
    given = None if format_of is None else by_format(format_of)
    is_day = given is not None and given.written is not None and not given.written.has_clock

    def read(value: Any, around: times.TimeContext) -> Stamp | None:
        if given is not None:
            text = str(value).encode(errors="replace")
            return given(text, around) if given.unread(text) is None else None
        return _stamp(times.any_time(value, around.zone))

    def recogniser(line: bytes, around: times.TimeContext) -> Stamp | None:
        if is_day and _CLOCK_IN_FIELD.search(line):  # the hour is in another field
            return None
        fields = _fields(line)
        if fields is not None:
            host = _first(fields, _HOST_FIELDS, _host_name)
            value: Any = fields
            # A field may have a dot in its own name ("log.time" as one key); the literal name is tried first.
            for part in [name] if name in fields else name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            stamp = read(value, around)
            return Stamp(None, host) if stamp is None else stamp._replace(host=host)
        match = in_text.search(line)
        if match is None:
            return None
        text = (match[1] if match[1] is not None else match[2]).decode(errors="replace")
        return read(text, around)

    return recogniser


def by_format(format_of: str) -> SearchingRecogniser:
    """A time near the line's beginning, in a format of strptime's directives. ValueError for an invalid format."""
    written = compiled(format_of)
    return SearchingRecogniser(LineTimeSearch(written.form), written.moment, written)


def _stamp(moment: times.Moment | None, host: bytes | None = None) -> Stamp | None:
    return None if moment is None else Stamp(moment.timestamp_ms, host, moment.is_zoneless, moment.again_ms)


def _fields(line: bytes) -> Mapping[str, Any] | None:
    """The fields of a JSON object; None for any other line."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        fields = json.loads(line.decode("utf-8", "surrogatepass"))  # it would look for UTF-16 first
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, Mapping) else None


def _host_name(value: Any) -> bytes | None:
    name = value.get("name") if isinstance(value, Mapping) else value
    return name.encode("utf-8", "surrogatepass") if isinstance(name, str) and name else None


def _first(fields: Mapping[str, Any], names: tuple[str, ...], read: Callable[[Any], Any]) -> Any:
    """The first of several fields that exists and can be read."""
    for name in names:
        if name in fields and (result := read(fields[name])) is not None:
            return result
    return None
