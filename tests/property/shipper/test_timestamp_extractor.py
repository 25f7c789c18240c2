"""Recognising a timestamp never raises, whatever a line holds; a written time is read back as itself, or not at all."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from logbus.parsing.times import MONTH_NAMES, TimeContext, any_time, instant, milliseconds
from logbus.shipper.line_timestamps import Stamp, by_format
from logbus.shipper.timestamp_extractor import TimeOptions, detect
from logbus.shipper.timestamp_suggestions import FORMATS

from tests.support.examples import examples
from tests.support.recognising import recognise

ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Kathmandu"])
MOMENTS = st.builds(
    lambda at, zone: at.astimezone(ZoneInfo(zone)),
    st.datetimes(datetime(1993, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),
    ZONES,
)
# How lines begin that are recognised: strftime's directives, with {zone} where one may stand.
LINES = (
    'host - - [%d/%b/%Y:%H:%M:%S %z] "GET / HTTP/1.0" 200 1',
    "%Y-%m-%dT%H:%M:%S.%f{zone} INFO text",
    "%Y-%m-%d %H:%M:%S,%f{zone} - text",
    "%Y-%m-%d\t%H:%M:%S{zone}\ttext",
    "INFO [%Y-%m-%d %H:%M:%S{zone}] text",
    "<13>1 %Y-%m-%dT%H:%M:%S.%f%z host app - - - text",
    "%b %d %H:%M:%S{zone} host app[7]: text",
    "%b %d %H:%M:%S %Y host app[7]: text",
    "I%m%d %H:%M:%S.%f       7 file.go:12] text",
    "%Y/%m/%d %H:%M:%S{zone} [error] text",
    "%y/%m/%d %H:%M:%S{zone} INFO text",
    "%y%m%d %H%M%S 143 INFO text",
    "[%a %b %d %H:%M:%S.%f %Y] [core:error] text",
    "[%d-%b-%Y %H:%M:%S{zone}] text",
    "%d %b %Y %H:%M:%S,%f{zone} text",
    '{"time": "%Y-%m-%dT%H:%M:%S.%f{zone}"}',
    '{"time": "%d/%b/%Y:%H:%M:%S{zone}"}',
    '{"time": "%Y%m%dT%H%M%S{zone}"}',
    "level=info time=%Y-%m-%dT%H:%M:%S{zone}",
)
WRITTEN_ZONES = st.sampled_from(["", "%z", " %z", " %:z", " %hours", " UTC%hours", " GMT%z", " %name", "[%name]", " %Z", " PM"])

# What may stand beside a time, and be taken for a part of it, or the other way round.
BEFORE = st.sampled_from(["", "", "7 ", "12-", "3/", "1.", "x=", "[", "2014 "])
BEHIND = st.sampled_from([" text", " text", "-5 text", ":07 text", "/7 text", "] text"])


def zone_text(form: str, at: datetime) -> str:
    offset = f"{at:%z}"
    for directive, text in (("%:z", f"{offset[:3]}:{offset[3:]}"), ("%hours", offset[:3]), ("%name", str(at.tzinfo))):
        form = form.replace(directive, text)
    assume(not form.endswith(offset[:3]) or offset.endswith("00"))  # two digits cannot say half an hour
    return form


def read_back(line: str, at: datetime, named: tzinfo | None, format_of: str | None) -> tuple[Stamp, set[int]]:
    """The stamp of a line in a file of its kind, and the instants that it may have."""
    zone = named or UTC
    lines = [line.encode()] * 3
    stamp = detect(lines, TimeContext(zone, at + timedelta(days=1)), TimeOptions(format_of=format_of, zone=named)).stamp(lines[0])
    own = {milliseconds(at)}
    local = {milliseconds(at.replace(tzinfo=zone, fold=fold)) for fold in (0, 1)}
    return stamp, local if stamp.is_zoneless else own


def precise(at: datetime, pattern: str) -> datetime:
    """As much of the time as the pattern writes."""
    if "%f" in pattern:
        return at.replace(microsecond=at.microsecond // 1000 * 1000)
    at = at.replace(microsecond=0)
    if not re.search("%S", pattern):
        at = at.replace(second=0)
    return at if re.search("%[HI]", pattern) else at.replace(hour=0, minute=0)


@given(st.binary(max_size=300))
def test_any_bytes_are_recognised_or_not(line: bytes) -> None:
    timestamp_ms, host = recognise(line)[:2]
    assert timestamp_ms is None or isinstance(timestamp_ms, int)
    assert host is None or host


@settings(max_examples=examples(300))
@given(MOMENTS, st.sampled_from(LINES), WRITTEN_ZONES, st.booleans())
def test_a_time_is_read_back_as_itself_or_not_at_all(at: datetime, pattern: str, zone: str, names_it: bool) -> None:
    at = precise(at, pattern)
    has_own = "%z" in pattern or ("{zone}" in pattern and zone not in ("", " %Z", " PM"))
    line = at.strftime(pattern.replace("{zone}", zone_text(zone, at)))
    stamp, instants = read_back(line, at, at.tzinfo if names_it else None, None)
    assert stamp.timestamp_ms is None or stamp.timestamp_ms in instants
    assert not has_own or not stamp.is_zoneless or zone == "[%name]", "what is written behind the time is never passed over"
    if zone in ("", "%z", " %z") or "{zone}" not in pattern:
        assert stamp.timestamp_ms is not None


@settings(max_examples=examples(300))
@given(MOMENTS, st.sampled_from(FORMATS), WRITTEN_ZONES, st.booleans(), BEFORE, BEHIND)
def test_a_time_in_a_proposed_format_is_read_back_as_itself_or_not_at_all(
    at: datetime, format_of: str, zone: str, names_it: bool, before: str, behind: str
) -> None:
    at = precise(at, format_of) if format_of != "%s" else at.replace(microsecond=0)
    assume(format_of != "%s" or at.timestamp() >= 1e9)  # of nine digits
    assume(not zone or behind in (" text", "] text"))  # UTC-5 and +00:07 are zones of their own
    pattern = format_of.replace("%s", str(int(at.timestamp()))) + (zone_text(zone, at) if re.search("%[SM]$", format_of) else "")
    stamp, instants = read_back(f"{before}{at.strftime(pattern)}{behind}", at, at.tzinfo if names_it else None, format_of)
    assert stamp.timestamp_ms is None or stamp.timestamp_ms in instants
    if zone + before == "" and behind == " text" and ("%Z" not in format_of or names_it):
        assert stamp.timestamp_ms is not None


@given(MOMENTS, st.sampled_from(["%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S,%f %z", "%Y%m%d%H%M%S"]))
def test_a_column_and_a_line_have_the_same_instant(at: datetime, form: str) -> None:
    moment = any_time(at.strftime(form), UTC)
    assert moment is not None
    assert moment.timestamp_ms == milliseconds(instant(at.strftime(form)))


DATES = (("%Y", "%m", "%d"), ("%d", "%b", "%y"), ("%A", "%d", "%B", "%Y"), ("%a", "%m", "%d", "%y"), ("%Y", "%j"))
CLOCKS = (("%H",), ("%H", "%M"), ("%H", "%M", "%S"), ("%H", "%M", "%S", "%f"), ("%I", "%M", "%S", "%p"), ("%H", "%M", "%S", "%z"))


@settings(max_examples=examples(300))
@given(
    MOMENTS,
    st.sampled_from(DATES),
    st.sampled_from(CLOCKS),
    st.lists(st.sampled_from(" -/:._|"), min_size=8, max_size=8),
    st.booleans(),
)
def test_a_format_means_what_it_means_to_strptime(
    at: datetime, date: tuple[str, ...], clock: tuple[str, ...], signs: list[str], is_padded: bool
) -> None:
    """Also where numbers have fewer digits than they are usually written with."""
    directives = [*date, *clock]
    format_of = "".join(directive + sign for directive, sign in zip(directives, [*signs, *signs], strict=False)).rstrip(" -/:._|")
    written = at.strftime(format_of)
    if not is_padded:
        written = re.sub(r"(?<![\d+-])0(\d)(?!\d)", r"\1", written)
    try:
        expected = datetime.strptime(written, format_of)
    except ValueError:  # `%Y-%m` of a year and a sign, perhaps
        expected = None
    stamp = by_format(format_of)(written.encode(), TimeContext(UTC))
    if expected is None:
        assert stamp is None
    else:
        assert stamp is not None
        assert stamp.timestamp_ms == milliseconds(expected if expected.tzinfo else expected.replace(tzinfo=UTC))


@pytest.mark.parametrize(("format_of", "written"), [("%y%m%d %H:%M:%S", "2026 10:05:03"), ("%Y%m%d%H%M", "20261110511")])
def test_numbers_without_anything_between_them_need_all_of_their_digits(format_of: str, written: str) -> None:
    assert datetime.strptime(written, format_of)
    assert by_format(format_of)(written.encode(), TimeContext(UTC)) is None


def test_months_have_the_names_that_strptime_knows() -> None:
    assert tuple(f"{datetime(2015, month, 1):%b}" for month in range(1, 13)) == MONTH_NAMES
