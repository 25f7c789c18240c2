"""From a time as it was written to milliseconds since 1970 UTC: the arithmetic of every format (timestamps.py).

A time without a zone is read in the zone that the caller passes, and its `Moment` is marked `is_zoneless`. When clocks are set
back, such a time occurs twice: the moment holds the first, and the second as `again_ms`. A time without a year (syslog, klog) is
the newest one that is not after the file was last written.

Results are cached by second, because a busy log repeats its stamp many times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from logbus.model import EPOCH, MILLISECOND

STAMPS_REMEMBERED = 4096
DAY = timedelta(days=1)

# The zone must be complete: the `-07` of `10:05:03-07` alone could be hours, or the beginning of the next field.
# No digit may precede the year, or a request id that ends like a date would be taken for one.
ISO_8601 = re.compile(rb"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:(?:Z|UTC|GMT)\b|[+-]\d\d:?\d\d(?!\d)))?")
# Ten, 13, 16 or 19 digits: other lengths are counters and ids, not times of this century.
EPOCH_DIGITS = r"(?:\d{19}|\d{16}|\d{13}|\d{10}(?:\.\d{1,9})?)"
EPOCH_FIRST = re.compile(rb"\[?(%b)(?![\d.])" % EPOCH_DIGITS.encode())
MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_COMBINED_TIME = re.compile(rb"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}")
# Whether a number is seconds, milliseconds, microseconds or nanoseconds follows from its size: each unit covers the years 1973
# to 5138. A smaller number is a duration: `"time": 0.012`.
_EPOCH_LEAST = 1e8
_EPOCH_UNITS_PER_MS = ((1e11, 1000, 1), (1e14, 1, 1), (1e17, 1, 1_000), (1e20, 1, 1_000_000))


class TimeContext(NamedTuple):
    """What a line itself does not contain: the zone of times without one, and when its file was last written."""

    zone: tzinfo = UTC
    written: datetime = datetime(9999, 12, 1, tzinfo=UTC)


class Moment(NamedTuple):
    """A written time, converted."""

    timestamp_ms: int
    is_zoneless: bool = False
    again_ms: int | None = None


@lru_cache(STAMPS_REMEMBERED)
def combined_time_ms(written: bytes) -> int | None:
    """`17/May/2015:10:05:03 +0200`; None for a date that does not exist."""
    day, month, year = written[:2], written[3:6], written[7:11]
    hour, minute, second = written[12:14], written[15:17], written[18:20]
    sign = -1 if written[21:22] == b"-" else 1
    zone = timezone(sign * timedelta(hours=int(written[22:24]), minutes=int(written[24:26])))
    try:
        moment = datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except (ValueError, KeyError):
        return None
    return milliseconds(moment)


@lru_cache(STAMPS_REMEMBERED)
def iso_time(written: bytes, zone_given: tzinfo) -> Moment | None:
    """`2015-05-17T10:05:03.5+02:00` and the like (`ISO_8601`); None for a date that does not exist."""
    # Taken apart first: a fraction has one to nine digits, after a point or a comma, and must have six here.
    text = re.sub(" ?(?:Z|UTC|GMT)$", "Z", written.decode("ascii").replace(",", "."))
    whole, zone = text[:19], text[19:].lstrip("." + "0123456789").strip()
    fraction = text[19 : len(text) - len(zone)].strip().lstrip(".")
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}")
    except ValueError:
        return None
    return Moment(milliseconds(moment)) if moment.tzinfo else in_zone(moment, zone_given)


@lru_cache(STAMPS_REMEMBERED)
def without_year(month: int, day: int, hour: int, minute: int, second: int, micros: int, around: TimeContext) -> Moment | None:
    """The times of syslog and klog."""
    found = in_newest_year(lambda year: datetime(year, month, day, hour, minute, second, micros), around)
    return None if found is None else in_zone(found, around.zone)


def in_newest_year(read: Callable[[int], datetime], around: TimeContext) -> datetime | None:
    """The time in the newest year in which it is not after the file was last written, allowing for clocks that differ by hours:
    on New Year's Eve that may be next year, which has begun in the zone of the lines. In a log of more than a year such a time
    occurs twice, and nothing in it shows which one it is."""
    latest = (around.written + DAY).astimezone(around.zone)
    for year in (latest.year, latest.year - 1):
        with suppress(ValueError):  # perhaps the 29th of February, which the year before has
            found = read(year)
            if (found if found.tzinfo else found.replace(tzinfo=around.zone)) <= latest:
                return found
    return None


def local_time(numbers: tuple[int, int, int, int, int, int], fraction: bytes | None, zone: tzinfo) -> Moment | None:
    """A time without a zone; `numbers` are year to second."""
    try:
        return in_zone(datetime(*numbers, microseconds(fraction or b"")), zone)
    except ValueError:
        return None


def date_numbers(written: Sequence[bytes]) -> tuple[int, int, int, int, int, int]:
    """The year may have two digits."""
    year, month, day, hour, minute, second = written
    return _century(year), int(month), int(day), int(hour), int(minute), int(second)


def in_zone(moment: datetime, zone: tzinfo) -> Moment:
    """A time that was written without a zone."""
    # In the hour that clocks skip, the two folds are the other way round: `second` is before `first`, the time did not exist,
    # and only the first reading (with the offset before the change) is kept.
    first, second = (milliseconds(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return Moment(first, True, second if second > first else None)


def microseconds(fraction: bytes) -> int:
    """The microseconds of a fraction with any number of digits."""
    return int(f"{fraction.decode()[:6]:0<6}")


def _century(written: bytes) -> int:
    """POSIX's rule for two digits: 69 to 99 are in the last century."""
    year = int(written)
    return year if len(written) == 4 else year + (1900 if year >= 69 else 2000)


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def any_time(value: Any, zone: tzinfo) -> Moment | None:
    """A JSON value as a time: a number since 1970, as text too, or text in one of the forms above."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return epoch_time(value)
    if not isinstance(value, str) or not value.isascii():
        return None
    written = value.strip().encode("ascii")
    if ISO_8601.fullmatch(written):
        return iso_time(written, zone)
    if EPOCH_FIRST.fullmatch(written):
        return epoch_time(written)
    if _COMBINED_TIME.fullmatch(written):
        found = combined_time_ms(written)
        return None if found is None else Moment(found)
    return None


def epoch_time(value: float | bytes | str) -> Moment | None:
    """A number since 1970, or its digits."""
    # Nanoseconds have more digits than a float can hold, so integers stay integers. A float is only the nearest to what was
    # written and may be a little less, hence the rounding.
    if isinstance(value, (bytes, str)):
        value = float(value) if "." in str(value) else int(value)
    for below, times, by in _EPOCH_UNITS_PER_MS:
        if _EPOCH_LEAST <= value < below:
            return Moment(value * times // by if isinstance(value, int) else int(round(value * times / by, 3)))
    return None
