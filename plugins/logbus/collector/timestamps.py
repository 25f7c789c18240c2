"""When did a log line happen, and on whose behalf? A table of recognisers, each for one way of writing a line.

A recogniser takes the line's bytes and the `TimeContext` of its file, and returns a `Stamp`, or None where the line is not of
its kind. Times are milliseconds since 1970 UTC. A time written without a zone is taken in the zone that the caller gives, and
its stamp says so: `is_zoneless`. Where clocks are put back such a time comes twice: the stamp has the first, and the second as
`again_ms`. A time without a year (syslog, klog) is the newest one that is not after the file was last written. `host` is who a
line names as its origin, the natural key of the record: the client of an access log, the machine of a syslog line, the host
field of a JSON line.

Nothing here guesses: which of the recognisers a file's lines are read by is chosen once for the file (clocks.py), from what
most of them are. Tried line by line, a date in somebody's message would be taken for the time of that line and of those after
it.

Called once a line: the regular expressions are anchored, and the calendar arithmetic is remembered by second, since a busy log
repeats its stamp many times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

LINE_START_BYTES = 160  # an ISO time further inside is more likely data than the line's own stamp
STAMPS_REMEMBERED = 4096
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)

_COMBINED = re.compile(rb"(\S+) \S+ [^\[]*\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")
# The zone must be a whole one: `-07` of `10:05:03-07` alone would be taken for hours by some and for the next field by others.
# No digit may stand before the year, or a request id that ends like a date would be one.
_ISO_8601 = re.compile(rb"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z\b|[+-]\d\d:?\d\d(?!\d)))?")
_SYSLOG = re.compile(rb"(?:<\d{1,3}>)?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d+)? (?:(\S+) )?")
_SYSLOG_5424 = re.compile(rb"<\d{1,3}>1 (\S+) (\S+) ")
_KLOG = re.compile(rb"[IWEF](\d\d)(\d\d) +(\d\d):(\d\d):(\d\d)\.(\d{1,9}) ")
# Year, month, day. The American order, month first, cannot be told from it by its looks; `--time-format` is for that.
_SLASHED = re.compile(rb"\[?(\d\d(?:\d\d)?)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\b")
# A thread's number follows in every Hadoop log. Without it, two numbers of six digits at a line's beginning would be a time.
_DIGITS = re.compile(rb"(\d\d)(\d\d)(\d\d) (\d\d)(\d\d)(\d\d) \d+ ")
_APACHE_ERROR = re.compile(rb"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? (\d{4})\]")
_DAY_MONTH = re.compile(rb"\[?(\d{1,2})[ -]([A-Z][a-z]{2})[ -](\d{4}) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\b")
# Ten, 13, 16 or 19 digits: other lengths are counters and ids, and no log of this century has them.
_EPOCH_FIRST = re.compile(rb"\[?(\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19})(?![\d.])")
_MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_TIME_FIELDS = ("timestamp", "@timestamp", "time", "ts", "datetime", "date", "time_iso8601", "time_local", "msec", "asctime", "t")
_HOST_FIELDS = ("host", "hostname")
_FIELD_EPOCH = re.compile(rb"(?:^|[ ,])(?:ts|time|timestamp|t)=\"?(\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19})\"?(?:[ ,]|$)")
# A number is seconds, milliseconds, microseconds or nanoseconds by its size: each unit covers the years 1973 to 5138.
_EPOCH_UNITS_MS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (1e20, 1e-6))


class TimeContext(NamedTuple):
    """What a line does not say itself: the zone of times without one, and when its file was last written."""

    zone: tzinfo = UTC
    written: datetime = datetime.max.replace(tzinfo=UTC)


class Moment(NamedTuple):
    """A time as it was written."""

    timestamp_ms: int
    is_zoneless: bool = False
    again_ms: int | None = None


class Stamp(NamedTuple):
    """What a line says about itself; time and host may be absent."""

    timestamp_ms: int | None
    host: bytes | None
    is_zoneless: bool = False
    again_ms: int | None = None


Recogniser = Callable[[bytes, TimeContext], Stamp | None]

NO_STAMP = Stamp(None, None)


def combined(line: bytes, around: TimeContext = TimeContext()) -> Stamp | None:  # noqa: B008  # immutable
    """The access-log formats, common and combined: `host ident user [17/May/2015:10:05:03 +0000] ...`; with a zone, always."""
    match = _COMBINED.match(line)
    if match is None:
        return None
    host, written = match.groups()
    return Stamp(_combined_time_ms(written), host)


def json_object(line: bytes, around: TimeContext) -> Stamp | None:
    """A JSON object with the usual field names for time and host; `host` may be an object with a name."""
    return _of_fields(_fields(line), _TIME_FIELDS, around)


def iso_8601(line: bytes, around: TimeContext) -> Stamp | None:
    """A date and time near the line's beginning, as most application logs write it."""
    match = _ISO_8601.search(line, 0, LINE_START_BYTES)
    return None if match is None else _stamp(_iso_time(match[0], around.zone))


def syslog(line: bytes, around: TimeContext) -> Stamp | None:
    """RFC 3164: `May 17 10:05:03 web1 sshd[7]: ...`, as syslog daemons write it to files; neither year nor zone."""
    match = _SYSLOG.match(line)
    if match is None or match[1] not in _MONTHS:
        return None
    month, day, hour, minute, second, host = match.groups()
    return _stamp(_without_year(_MONTHS[month], int(day), int(hour), int(minute), int(second), 0, around), host)


def syslog_5424(line: bytes, around: TimeContext) -> Stamp | None:
    """RFC 5424: `<34>1 2015-05-17T10:05:03.5Z web1 sshd 7 - - ...`; a time or host that is `-` is not known."""
    match = _SYSLOG_5424.match(line)
    if match is None:
        return None
    time, host = match.groups()
    moment = _iso_time(time, around.zone) if _ISO_8601.fullmatch(time) else None
    host = None if host == b"-" else host
    return Stamp(None, host) if moment is None else _stamp(moment, host)


def klog(line: bytes, around: TimeContext) -> Stamp | None:
    """Kubernetes' and Google's: `I0517 10:05:03.123456       7 file.go:12] ...`; neither year nor zone."""
    match = _KLOG.match(line)
    if match is None:
        return None
    month, day, hour, minute, second, fraction = match.groups()
    return _stamp(_without_year(int(month), int(day), int(hour), int(minute), int(second), _micros(fraction), around))


def slashed(line: bytes, around: TimeContext) -> Stamp | None:
    """`15/05/17 10:05:03 INFO ...` as Spark writes, `2015/05/17 10:05:03 [error] ...` as nginx and Go do; without a zone."""
    match = _SLASHED.match(line)
    return None if match is None else _stamp(_local(_numbers(match.groups()[:6]), match[7], around.zone))


def digits(line: bytes, around: TimeContext) -> Stamp | None:
    """`150517 100503 143 INFO dfs.DataNode: ...`, as Hadoop's daemons write; without a zone."""
    match = _DIGITS.match(line)
    return None if match is None else _stamp(_local(_numbers(match.groups()), b"", around.zone))


def apache_error(line: bytes, around: TimeContext) -> Stamp | None:
    """`[Sun May 17 10:05:03.123456 2015] [core:error] ...`: Apache's error log; without a zone."""
    match = _APACHE_ERROR.match(line)
    if match is None or match[1] not in _MONTHS:
        return None
    month, day, hour, minute, second, fraction, year = match.groups()
    return _stamp(_local((int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second)), fraction, around.zone))


def day_month(line: bytes, around: TimeContext) -> Stamp | None:
    """`17 May 2015 10:05:03,123 INFO ...`: log4j's DATE, and others that write the month as a word; without a zone."""
    match = _DAY_MONTH.match(line)
    if match is None or match[2] not in _MONTHS:
        return None
    day, month, year, hour, minute, second, fraction = match.groups()
    return _stamp(_local((int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second)), fraction, around.zone))


def epoch(line: bytes, around: TimeContext) -> Stamp | None:
    """A number since 1970 at the line's beginning, or as the field of a logfmt line: in seconds or smaller units, by its size."""
    match = _EPOCH_FIRST.match(line) or _FIELD_EPOCH.search(line, 0, LINE_START_BYTES)
    return None if match is None else Stamp(_epoch_ms(float(match[1])), None)


# In the order in which they are preferred where several know as many lines: the more a format says, the earlier.
# An access log's line is also one with a number first, if the client is an address written as one; a JSON object may contain
# all the others. The epoch comes last: it is the form that says least about itself.
RECOGNISERS: Mapping[str, Recogniser] = {
    "access log": combined,
    "JSON": json_object,
    "syslog (RFC 5424)": syslog_5424,
    "syslog (RFC 3164)": syslog,
    "klog": klog,
    "Apache's error log": apache_error,
    "YY/MM/DD": slashed,
    "DD Mon YYYY": day_month,
    "YYMMDD HHMMSS": digits,
    "ISO 8601": iso_8601,
    "seconds since 1970": epoch,
}


def by_field(name: str, format_of: str | None = None) -> Recogniser:
    """A field of JSON objects (`a.b` for one inside another) or of logfmt lines, in any of the forms above, or by `format_of`."""
    in_text = re.compile(rb"(?:^|[ ,])%b=(?:\"([^\"]*)\"|(\S+))" % re.escape(name.encode()))
    given = None if format_of is None else by_format(format_of)

    def read(value: Any, around: TimeContext) -> Stamp | None:
        if given is not None:
            return given(str(value).encode(), around)
        return _stamp(_any_time(value, around.zone))

    def recogniser(line: bytes, around: TimeContext) -> Stamp | None:
        fields = _fields(line)
        if fields is not None:
            host = _first(fields, _HOST_FIELDS, _host_name)
            value: Any = fields
            # A field may have a dot in its own name ("log.time" as one key); the name as it was given comes first.
            for part in [name] if name in fields else name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            found = read(value, around)
            return Stamp(None, host) if found is None else found._replace(host=host)
        match = in_text.search(line)
        if match is None:
            return None
        text = (match[1] if match[1] is not None else match[2]).decode(errors="replace")
        return read(float(text) if re.fullmatch(r"\d+(?:\.\d+)?", text) and given is None else text, around)

    return recogniser


# What may stand where a directive of strptime stands. %s is date's: seconds since 1970. Of zones' names (%Z) strptime knows UTC,
# GMT and those of the machine that it runs on, whose difference from UTC it does not apply: the first two alone mean one thing.
_DIRECTIVES: Mapping[str, str] = {
    **{
        "Y": r"\d{4}",
        "y": r"\d\d",
        "m": r"\d{1,2}",
        "d": r" ?\d{1,2}",
        "H": r"\d{1,2}",
        "I": r"\d{1,2}",
        "M": r"\d\d",
        "S": r"\d\d",
    },
    **{"f": r"\d{1,9}", "j": r"\d{1,3}", "p": r"[AaPp][Mm]", "b": r"[A-Za-z]{3}", "B": r"[A-Za-z]{3,9}", "a": r"[A-Za-z]{3}"},
    **{"A": r"[A-Za-z]{6,9}", "z": r"(?:Z|[+-]\d\d:?\d\d)", "Z": r"(?:UTC|GMT)", "s": r"\d{9,11}", "%": "%"},
}


def by_format(format_of: str) -> Recogniser:
    """A time near the line's beginning, written as strptime's directives say. ValueError for a format that cannot be."""
    parts = re.split(r"%(.)", format_of)
    names = parts[1::2]
    if unknown := [name for name in names if name not in _DIRECTIVES]:
        raise ValueError(f"%{unknown[0]} is not one of strptime's directives that stand for a date or a time")
    if not names:
        raise ValueError("it has no directive: write it like %d.%m.%Y %H:%M:%S")
    pattern = "".join(
        _DIRECTIVES[part] if index % 2 else re.escape(part).replace(r"\ ", " +") for index, part in enumerate(parts) if part
    )
    expression = re.compile(rb"(?<![0-9A-Za-z])%b(?![0-9])" % pattern.encode())
    has_year, has_zone = bool({"Y", "y", "s"} & {*names}), bool({"z", "Z", "s"} & {*names})

    @lru_cache(STAMPS_REMEMBERED)
    def moment_of(written: bytes, zone: tzinfo, latest: datetime) -> Moment | None:
        # strptime's %f takes six digits; loggers of nanoseconds write nine. What is cut is less than a record's timestamp can
        # hold.
        text = re.sub(r"(\.|,)(\d{6})\d+", r"\1\2", written.decode(errors="replace"))
        if names == ["s"]:
            return Moment(int(re.sub(r"\D", "", text)) * 1000)
        try:
            if has_year:
                found = datetime.strptime(text, format_of)
            else:
                found = datetime.strptime(f"{latest.year} {text}", f"%Y {format_of}")
        except ValueError:
            return None
        # strptime reads a zone's name (%Z) and leaves the time without one; the two names that the directives allow are UTC.
        if found.tzinfo is not None or has_zone:
            return Moment(_milliseconds(found if found.tzinfo else found.replace(tzinfo=UTC)))
        # As in `_without_year`: December's lines in a file that was last written in January are of the year before.
        if not has_year and found.replace(tzinfo=zone) > latest + DAY:
            found = found.replace(year=latest.year - 1)
        return _in_zone(found, zone)

    def recogniser(line: bytes, around: TimeContext) -> Stamp | None:
        match = expression.search(line, 0, LINE_START_BYTES)
        return None if match is None else _stamp(moment_of(match[0].strip(), around.zone, around.written))

    return recogniser


def _stamp(moment: Moment | None, host: bytes | None = None) -> Stamp | None:
    return None if moment is None else Stamp(moment.timestamp_ms, host, moment.is_zoneless, moment.again_ms)


@lru_cache(STAMPS_REMEMBERED)
def _combined_time_ms(written: bytes) -> int | None:
    """`17/May/2015:10:05:03 +0200`; None for a date that does not exist."""
    day, month, year = written[:2], written[3:6], written[7:11]
    hour, minute, second = written[12:14], written[15:17], written[18:20]
    sign = -1 if written[21:22] == b"-" else 1
    zone = timezone(sign * timedelta(hours=int(written[22:24]), minutes=int(written[24:26])))
    try:
        moment = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except (ValueError, KeyError):
        return None
    return _milliseconds(moment)


@lru_cache(STAMPS_REMEMBERED)
def _iso_time(written: bytes, zone_given: tzinfo) -> Moment | None:
    # Taken apart first: fractions may have one digit or nine, after a point or a comma, and are six digits here.
    text = written.decode("ascii").replace(",", ".").replace(" Z", "Z")
    whole, zone = text[:19], text[19:].lstrip("." + "0123456789").strip()
    fraction = text[19 : len(text) - len(zone)].strip().lstrip(".")
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}")
    except ValueError:
        return None
    return Moment(_milliseconds(moment)) if moment.tzinfo else _in_zone(moment, zone_given)


@lru_cache(STAMPS_REMEMBERED)
def _without_year(month: int, day: int, hour: int, minute: int, second: int, micros: int, around: TimeContext) -> Moment | None:
    """In the newest year in which it is not after the file was last written, clocks that differ by hours allowed for. A log of
    more than a year has such a time twice: nothing in it says which."""
    for year in (around.written.year, around.written.year - 1):
        try:
            found = datetime(year, month, day, hour, minute, second, micros)
        except ValueError:  # the 29th of February, perhaps, which the year before has
            continue
        if year == 1 or found.replace(tzinfo=around.zone) <= around.written.astimezone(UTC) + DAY:
            return _in_zone(found, around.zone)
    return None


def _local(numbers: tuple[int, int, int, int, int, int], fraction: bytes | None, zone: tzinfo) -> Moment | None:
    """From year to second."""
    try:
        return _in_zone(datetime(*numbers, _micros(fraction or b"")), zone)
    except ValueError:
        return None


def _numbers(written: Sequence[bytes]) -> tuple[int, int, int, int, int, int]:
    year, month, day, hour, minute, second = written
    return _century(year), int(month), int(day), int(hour), int(minute), int(second)


def _in_zone(moment: datetime, zone: tzinfo) -> Moment:
    # In the hour that clocks skip, the two folds are the other way round: `second` is before `first`, the time did not exist,
    # and the first reading (the offset before the change) is kept as its only one.
    first, second = (_milliseconds(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return Moment(first, True, second if second > first else None)


def _micros(fraction: bytes) -> int:
    return int(f"{fraction.decode()[:6]:0<6}")


def _century(written: bytes) -> int:
    """POSIX's rule for two digits: 69 to 99 are of the last century."""
    year = int(written)
    return year if len(written) == 4 else year + (1900 if year >= 69 else 2000)


def _milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _fields(line: bytes) -> Mapping[str, Any] | None:
    """Of a JSON object."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, Mapping) else None


def _of_fields(fields: Mapping[str, Any] | None, names: tuple[str, ...], around: TimeContext) -> Stamp | None:
    if fields is None:
        return None
    host = _first(fields, _HOST_FIELDS, _host_name)
    moment = _first(fields, names, lambda value: _any_time(value, around.zone))
    return Stamp(None, host) if moment is None else _stamp(moment, host)


def _any_time(value: Any, zone: tzinfo) -> Moment | None:
    """A JSON value as a time: a number since 1970, as text too, or text in one of the forms above."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _moment(_epoch_ms(value))
    if not isinstance(value, str) or not value.isascii():
        return None
    written = value.strip().encode("ascii")
    if _ISO_8601.fullmatch(written):
        return _iso_time(written, zone)
    if _EPOCH_FIRST.fullmatch(written):
        return _moment(_epoch_ms(float(written)))
    if _COMBINED.match(b"- - [%b]" % written):
        return _moment(_combined_time_ms(written))
    return None


def _moment(timestamp_ms: int | None) -> Moment | None:
    return None if timestamp_ms is None else Moment(timestamp_ms)


def _epoch_ms(value: float) -> int | None:
    for below, factor in _EPOCH_UNITS_MS:
        if 0 < value < below:
            return int(value * factor)
    return None


def _host_name(value: Any) -> bytes | None:
    name = value.get("name") if isinstance(value, Mapping) else value
    return name.encode("utf-8", "surrogatepass") if isinstance(name, str) and name else None


def _first(fields: Mapping[str, Any], names: tuple[str, ...], read: Callable[[Any], Any]) -> Any:
    """The first of several fields that is there and can be read."""
    return next((found for name in names if (found := read(fields.get(name))) is not None), None)
