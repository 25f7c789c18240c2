"""Written times: the one reader of them, for the lines that are shipped, for columns, and for members of JSON.

A written time has a date, a time of day, perhaps a fraction, and perhaps a zone: an offset (`+02:00`, `-03`), UTC or GMT with or
without one (`UTC+8`), or a name of the IANA database (`Europe/Berlin`). A zone that is written wins over any that is named. An
abbreviation (`CET`) is read only where the named zone has it at that time: several zones share one. What cannot be read is no
time, never another time.

A number is an instant by its digits, wherever it stands: 8, 14 or 17 digits are a date (`20261120`), 12 too if they can be one;
all others are seconds, milli-, micro- or nanoseconds since 1970, by their size: each unit ends where the years get five digits.

`Moment` is what a shipped line needs: milliseconds, and whether its zone was written. `instant` is for columns.
Results are cached by second, because a busy log repeats its stamp many times.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from logbus.model import EPOCH, MILLISECOND

STAMPS_REMEMBERED = 4096
DAY = timedelta(days=1)
MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = {name.encode(): number for number, name in enumerate(MONTH_NAMES, 1)}

ABBREVIATION = (
    rb"(?:WES?T|BST|CES?T|MES?T|MES?Z|EES?T|MSK|TRT|SAST|EAT|WAT|IST|IDT|GST|PKT|WIB|WITA|ICT|PHT|HKT|SGT|JST|KST|A[CEW][SD]T|"
    rb"NZ[SD]T|[AECMPN][SD]T|AK[SD]T|H[SD]T|CHST|BRS?T|ART|CLS?T|UYT)\b"
)
# Two digits alone are an offset where PostgreSQL writes one; a longer number, a date or a range that begins so is not.
_ZONE = (
    rb"(?:Z\b|(?:UTC|GMT)(?: [+-]\d\d:?\d\d(?!\d)|[+-]\d[\d:]*|\b)|[+-]\d\d:?\d\d(?!\d|[.:]\d)|"
    rb"[+-](?:0\d|1[0-4])(?![\w:-]|\.\d)|(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/"
    rb"[\w/+-]+|" + ABBREVIATION + rb")"
)
# Possessive quantifiers here and below: what follows cannot match what they would give back, and most lines have no zone.
ZONE = rb"(?:[ \t]{0,2}+(" + _ZONE + rb"))?"
# Ten past noon is not ten in the morning: a time before AM or PM is only read by a format that says so. And what begins like an
# offset and is none makes the time unreadable, unless a space is between them.
NOTHING_UNREAD = rb"(?![.,:\d]*+(?:\s?[AaPp]\.?[Mm]\b|(?=[+-]\d)(?!" + _ZONE + rb")))"
FRACTION = rb"(?:(?:[.,]|:(?=\d{3}(?!\d)))(\d+))?"
TAIL = NOTHING_UNREAD + FRACTION + ZONE  # what follows the seconds: groups for the fraction and the zone
# No digit may precede the year, or a request id that ends like a date would be taken for one.
ISO_8601 = rb"(?<!\d)(\d{4}-\d\d-\d\d[T \t]\d\d:\d\d:\d\d)" + TAIL
# Ten, 13, 16 or 19 digits: in a line other lengths are counters and ids.
EPOCH_DIGITS = r"(?:\d{19}|\d{16}|\d{13}|\d{10}(?:\.\d{1,9})?)"
NUMBER_OF_A_TIME_MIN = 10**8  # a smaller number in a field is a duration: `"time": 0.012`

_GERMAN = {b"MEZ": b"CET", b"MESZ": b"CEST", b"MET": b"CET", b"MEST": b"CEST"}
_OFFSET = re.compile(r"(?:UTC|GMT)? ?([+-])(\d{1,2})(?::?(\d\d))?")
_ISO_TIME = re.compile(ISO_8601)
_CLOCK = rb"(\d\d)(?::?(\d\d)(?::?(\d\d)" + FRACTION + rb")?)?"
_DATE_AND_CLOCK = tuple(
    re.compile(date + rb"(?:" + before + _CLOCK + ZONE + rb")?")
    for date, before in (
        (rb"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)", rb"[T \t]"),
        (rb"(?P<year>\d{4})/(?P<month>\d\d)/(?P<day>\d\d)", rb"[T \t]"),
        (rb"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)", rb"[T \t]"),
        (rb"(?P<day>\d{1,2})[ /-](?P<month>[A-Z][a-z]{2})[ /-](?P<year>\d{4})", rb"[: \t]"),
    )
)
_DIGITS = re.compile(rb"(-?\d+)(?:\.(\d+))?")
_DATE_DIGITS = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)(?:(\d\d)(\d{3})?)?)?")
_DIGITS_OF_DATES = frozenset({8, 14, 17})
_PER_MILLISECOND = {13: 1, 16: 1_000, 19: 1_000_000}


class TimeContext(NamedTuple):
    """What a line itself does not contain: the zone of times without one, and when its file was last written."""

    zone: tzinfo = UTC
    written: datetime = datetime(9999, 12, 1, tzinfo=UTC)


class Moment(NamedTuple):
    """A written time, converted. When clocks are set back, a time without a zone occurs twice: it is the first, `again_ms` the
    second."""

    timestamp_ms: int
    is_zoneless: bool = False
    again_ms: int | None = None


class Written(NamedTuple):
    """A time as it was written: local to its zone, which may be absent. `has_clock`: it says more than the day."""

    local: datetime
    zone: bytes | None
    has_clock: bool = True


@lru_cache(256)
def zone_of(written: bytes) -> tzinfo | None:
    """The zone behind a time; None for an abbreviation. ValueError where there is no such zone."""
    text = written.decode("ascii")
    if text in ("Z", "UTC", "GMT"):
        return UTC
    if (offset := _OFFSET.fullmatch(text)) is not None:
        hours, minutes = (int(number or 0) for number in offset.groups()[1:])
        if hours > 23 or minutes > 59:
            raise ValueError(f"no zone has the offset {text}")
        distance = timedelta(hours=hours, minutes=minutes)
        return timezone(-distance if offset[1] == "-" else distance) if distance else UTC
    if "/" not in text and re.fullmatch(ABBREVIATION, written):
        return None
    try:
        return ZoneInfo(text)
    except (LookupError, OSError, ValueError):
        raise ValueError(f"there is no time zone {text}") from None


def in_zone(local: datetime, zone: bytes | None, given: tzinfo) -> Moment:
    """A local time in the zone that is written behind it, or else in `given`. ValueError where there is no such zone, or `given`
    has another name at that time."""
    own = None if zone is None else zone_of(zone)
    if own is not None or (zone is None and isinstance(given, timezone)):  # UTC, or an offset: no hour occurs twice
        return tuple.__new__(Moment, ((local.replace(tzinfo=own or given) - EPOCH) // MILLISECOND, own is None, None))
    # In the hour that clocks skip, the two folds are the other way round: `second` is before `first`, the time did not exist,
    # and only the first reading (with the offset before the change) is kept.
    folds = [local.replace(tzinfo=given, fold=fold) for fold in (0, 1)]
    if zone is not None:  # of a time that occurs twice the abbreviation says which one it is
        name = _GERMAN.get(zone, zone).decode("ascii")
        folds = [fold for fold in folds if fold.tzname() == name or not str(fold.tzname()).isalpha()]
        if not folds:
            raise ValueError(f"{given} is not called {name} at {local}")
    first, second = milliseconds(folds[0]), milliseconds(folds[-1])
    return Moment(first, True, second if second > first else None)


@lru_cache(STAMPS_REMEMBERED)
def second_of(
    year: int, month: int, day: int, hour: int, minute: int, second: int, zone: bytes | None, given: tzinfo
) -> Moment | None:
    """A time to the second, with its written zone; None for one that does not exist."""
    try:
        return in_zone(datetime(year, month, day, hour, minute, second), zone, given)
    except (ValueError, OverflowError):
        return None


def with_fraction(moment: Moment | None, fraction: bytes | None) -> Moment | None:
    """The same with the digits that were written behind the second."""
    if moment is None or not fraction:
        return moment
    millis = int(fraction if len(fraction) == 3 else fraction[:3].ljust(3, b"0"))
    timestamp_ms, is_zoneless, again_ms = moment
    # For every line: `Moment(...)` and `_replace` are functions in Python, which take two and six times as long.
    return tuple.__new__(Moment, (timestamp_ms + millis, is_zoneless, None if again_ms is None else again_ms + millis))


@lru_cache(STAMPS_REMEMBERED)
def combined_time(written: bytes) -> datetime | None:
    """`17/May/2015:10:05:03 +0200`; None for one that does not exist."""
    try:
        year, month, day = int(written[7:11]), MONTHS[written[3:6]], int(written[:2])
        hour, minute, second = int(written[12:14]), int(written[15:17]), int(written[18:20])
        return datetime(year, month, day, hour, minute, second, tzinfo=zone_of(written[21:]))
    except (ValueError, LookupError):
        return None


@lru_cache(STAMPS_REMEMBERED)
def combined_time_ms(written: bytes) -> int | None:
    """The same in milliseconds."""
    at = combined_time(written)
    return None if at is None else milliseconds(at)


@lru_cache(STAMPS_REMEMBERED)
def iso_second(written: bytes, zone: bytes | None, given: tzinfo) -> Moment | None:
    """`2015-05-17T10:05:03`, and what is written behind it."""
    try:
        return in_zone(datetime.fromisoformat(written.decode("ascii")), zone, given)
    except (ValueError, OverflowError):
        return None


def iso_time(written: bytes, given: tzinfo) -> Moment | None:
    """`2015-05-17T10:05:03.5+02:00` and the like (`ISO_8601`); None for anything else, and for a date that does not exist."""
    match = _ISO_TIME.fullmatch(written)
    if match is None:
        return None
    second, fraction, zone = match.groups()
    moment = iso_second(second, zone, given)
    return moment if fraction is None else with_fraction(moment, fraction)


def epoch_moment(digits: bytes) -> Moment:
    """A number since 1970 of as many digits as `EPOCH_DIGITS` has."""
    whole, _, fraction = digits.partition(b".")
    if len(whole) == 10:
        return Moment(int(whole) * 1000 + int(fraction[:3].ljust(3, b"0")))
    return Moment(int(whole) // _PER_MILLISECOND[len(whole)])


@lru_cache(STAMPS_REMEMBERED)
def without_year(
    month: int, day: int, hour: int, minute: int, second: int, zone: bytes | None, around: TimeContext
) -> Moment | None:
    """The times of syslog and klog: in the newest year in which they are not after the file was last written, allowing for clocks
    that differ by hours: on New Year's Eve that may be next year, which has begun in the zone of the lines. In a log of more than
    a year such a time occurs twice, and nothing in it shows which one it is."""
    latest = around.written + DAY
    year = latest.astimezone(around.zone).year
    for candidate in (year + (zone is not None), year, year - 1):
        moment = second_of(candidate, month, day, hour, minute, second, zone, around.zone)
        # None perhaps for the 29th of February, which the year before has.
        if moment is not None and moment.timestamp_ms <= milliseconds(latest):
            return moment
    return None


def full_year(written: bytes) -> int:
    """POSIX's rule for two digits: 69 to 99 are in the last century."""
    year = int(written)
    return year if len(written) == 4 else year + (1900 if year >= 69 else 2000)


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def _read(value: Any) -> Written | None:
    """A number, or text in one of the forms of ISO 8601, of access logs, or with the month as a word; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return _of_number(value)
    if not isinstance(value, str) or not value.isascii():
        return None
    written = value.strip().encode("ascii")
    if (digits := _DIGITS.fullmatch(written)) is not None:
        return _of_digits(digits[1], digits[2])
    for form in _DATE_AND_CLOCK:
        if (match := form.fullmatch(written)) is not None:
            break
    else:
        return None
    *_, hour, minute, second, fraction, zone = match.groups()
    month = MONTHS.get(match["month"]) if match["month"].isalpha() else int(match["month"])
    micros = int((fraction or b"0")[:6].ljust(6, b"0"))
    with suppress(ValueError):
        date = datetime(int(match["year"]), month or 0, int(match["day"]))
        clock = timedelta(hours=int(hour or 0), minutes=int(minute or 0), seconds=int(second or 0), microseconds=micros)
        if int(hour or 0) < 24 and int(minute or 0) < 60 and int(second or 0) < 60:
            return Written(date + clock, zone, hour is not None)
    return None


def instant(value: Any) -> datetime:
    """A value as a column stores it, in UTC. TypeError for what is no time, ValueError or OverflowError for one that does not
    exist."""
    # The common values of a column, in a fifth of the time that `_read` needs: ISO 8601, of which the standard library takes no
    # other form for another time, as it would fourteen digits; seconds as a number; ten digits.
    if isinstance(value, str):
        if len(value) > 18 and value[4] == "-" and value[10] in "T ":
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                pass
            else:
                return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        elif len(value) == 10 and value.isascii() and value.isdecimal():
            return EPOCH + timedelta(seconds=int(value))
    elif isinstance(value, (int, float)) and NUMBER_OF_A_TIME_MIN <= value < 10**11:
        return datetime.fromtimestamp(value, UTC)
    written = _read(value)
    if written is None:
        raise TypeError
    zone = UTC if written.zone is None else zone_of(written.zone)
    if zone is None:
        raise ValueError(f"the zone {written.zone!r} is ambiguous")
    return written.local.replace(tzinfo=zone).astimezone(UTC)


def any_time(value: Any, given: tzinfo) -> Moment | None:
    """The value of a field as the time of its line; None for a duration, and for a day alone, which says no hour."""
    if value is None:
        return None
    if type(value) is int:  # as `_of_number` reads them, in a fifth of the time: milliseconds, seconds
        if 10**12 <= value < 10**13:
            return Moment(value)
        if 10**9 <= value < 10**10:
            return Moment(value * 1000)
    # Tried first because it is cached by second, unlike all that follows: nearly all fields are written so.
    if isinstance(value, str) and value.isascii() and (moment := iso_time(value.encode("ascii"), given)) is not None:
        return moment
    written = _read(value)
    if written is None or not written.has_clock:
        return None
    try:
        return in_zone(written.local, written.zone, given)
    except (ValueError, OverflowError):
        return None


def _of_digits(whole: bytes, fraction: bytes | None) -> Written | None:
    if fraction is None:
        return _of_number(int(whole))
    written = _of_number(int(whole))
    if written is None or abs(int(whole)) >= 10**11 or whole.startswith(b"-"):
        return _of_number(float(whole + b"." + fraction))
    if len(whole) in _DIGITS_OF_DATES:
        return None
    return written._replace(local=written.local + timedelta(microseconds=int(fraction[:6].ljust(6, b"0"))))


def _of_number(value: float) -> Written | None:
    """A number since 1970, or the digits of a date."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # Nanoseconds have more digits than a float can hold, so integers stay integers.
        value = int(value) if value.is_integer() else value
    size = abs(value)
    digits = len(str(int(size)))
    if digits in _DIGITS_OF_DATES or digits == 12:
        date = _of_date_digits(str(value))
        if date is not None or digits != 12:
            return date
    if size < 10**11:
        since = timedelta(seconds=value)
    elif size < 10**14:
        since = timedelta(milliseconds=value)
    elif size < 10**20:
        divisor = 1 if size < 10**17 else 1000
        since = timedelta(microseconds=value // divisor if isinstance(value, int) else value / divisor)
    else:
        return None
    return Written(datetime(1970, 1, 1) + since, b"Z", value >= NUMBER_OF_A_TIME_MIN)


def _of_date_digits(digits: str) -> Written | None:
    match = _DATE_DIGITS.fullmatch(digits)
    if match is None:
        return None
    year, month, day, hour, minute, second, millis = (int(number or 0) for number in match.groups())
    with suppress(ValueError):
        return Written(datetime(year, month, day, hour, minute, second, millis * 1000), None, match[4] is not None)
    return None
