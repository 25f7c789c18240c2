"""When did a log line happen, and on whose behalf? A table of recognisers, each for one way of writing a line.

A recogniser takes the line's bytes and returns a `Stamp`, or None where the line is not of its kind. Times are milliseconds
since 1970 UTC. A time written without a zone is taken in the zone that the caller gives, and its stamp says so: `is_zoneless`.
Where clocks are put back such a time comes twice: the stamp has the first, and the second as `again_ms`. `host` is the client of
an access-log line or the host field of a JSON line: the natural key of the record. Nothing here guesses: a line that no
recogniser knows has no time of its own.

Called once a line, so the two regular expressions are anchored and the calendar arithmetic is remembered by second: a
busy log repeats its stamp many times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

LINE_START_BYTES = 160  # an ISO time further inside is more likely data than the line's own stamp
STAMPS_REMEMBERED = 4096

_COMBINED = re.compile(rb"(\S+) \S+ [^\[]*\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")
_ISO_8601 = re.compile(rb"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z\b|[+-]\d\d:?\d\d(?!\d)))?")
_MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_TIME_FIELDS = ("timestamp", "@timestamp", "time", "ts", "datetime", "date", "time_iso8601", "time_local")
_HOST_FIELDS = ("host", "hostname")
# A number is seconds, milliseconds, microseconds or nanoseconds by its size: each unit covers the years 1973 to 5138.
_EPOCH_UNITS_MS = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (1e20, 1e-6))


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


NO_STAMP = Stamp(None, None)


def recognise(line: bytes, zone: tzinfo = UTC) -> Stamp:
    """The first recogniser's answer that knows the line; NO_STAMP when none does."""
    for recogniser in _RECOGNISERS:
        stamp = recogniser(line, zone)
        if stamp is not None:
            return stamp
    return NO_STAMP


def combined(line: bytes, zone: tzinfo = UTC) -> Stamp | None:
    """The access-log formats, common and combined: `host ident user [17/May/2015:10:05:03 +0000] ...`; with a zone, always."""
    match = _COMBINED.match(line)
    if match is None:
        return None
    host, written = match.groups()
    return Stamp(_combined_time_ms(written), host)


def json_object(line: bytes, zone: tzinfo) -> Stamp | None:
    """A JSON object with the usual field names for time and host; `host` may be an object with a name."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    host = _first(fields, _HOST_FIELDS, _host_name)
    moment = _first(fields, _TIME_FIELDS, lambda value: _any_time(value, zone))
    return Stamp(None, host) if moment is None else Stamp(moment.timestamp_ms, host, moment.is_zoneless, moment.again_ms)


def iso_8601(line: bytes, zone: tzinfo) -> Stamp | None:
    """A date and time near the line's beginning, as most application logs write it."""
    match = _ISO_8601.search(line, 0, LINE_START_BYTES)
    if match is None:
        return None
    moment = _iso_time(match[0], zone)
    return None if moment is None else Stamp(moment.timestamp_ms, None, moment.is_zoneless, moment.again_ms)


_RECOGNISERS: tuple[Callable[[bytes, tzinfo], Stamp | None], ...] = (combined, json_object, iso_8601)


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
    text = written.decode("ascii").replace(",", ".").replace(" Z", "Z")
    whole, zone = text[:19], text[19:].lstrip("." + "0123456789").strip()
    fraction = text[19 : len(text) - len(zone)].strip().lstrip(".")
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}")
    except ValueError:
        return None
    if moment.tzinfo:
        return Moment(_milliseconds(moment))
    first, second = (_milliseconds(moment.replace(tzinfo=zone_given, fold=fold)) for fold in (0, 1))
    return Moment(first, True, second if second > first else None)


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _any_time(value: Any, zone: tzinfo) -> Moment | None:
    """A JSON value as a time: a number since 1970, or text in one of the forms above."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _moment(_epoch_ms(value))
    if not isinstance(value, str) or not value.isascii():
        return None
    written = value.strip().encode("ascii")
    if _ISO_8601.fullmatch(written):
        return _iso_time(written, zone)
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
