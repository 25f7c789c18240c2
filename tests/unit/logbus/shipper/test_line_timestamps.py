"""The recognisers of single lines, and where in a file's lines the time is."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from logbus.parsing.times import TimeContext
from logbus.shipper.line_timestamps import NO_STAMP, Stamp
from logbus.shipper.timestamp_extractor import TimeOptions, TimestampExtractor, detect

from tests.support.recognising import recognise


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]


BERLIN = ZoneInfo("Europe/Berlin")
COMBINED = b'83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "agent"'


@pytest.mark.parametrize(
    ("begins", "host"),
    [
        (b"www.example.com:443 10.0.0.1 - - [", b"10.0.0.1"),
        (b"www.example.com:443 2001:db8::1 - Jane Doe [", b"2001:db8::1"),
        (b"10.0.0.1:51234 - - [", b"10.0.0.1:51234"),
        (b"10.0.0.1:51234 - Jane Doe [", b"10.0.0.1:51234"),
        (b"2001:db8::1 - Jane Doe [", b"2001:db8::1"),
    ],
)
def test_the_client_is_the_host_though_a_virtual_host_precedes_it(begins: bytes, host: bytes) -> None:
    assert recognise(COMBINED.replace(b"83.149.9.216 - - [", begins)) == Stamp(ms(2015, 5, 17, 10, 5, 3), host)


def test_a_user_name_with_spaces_does_not_hide_the_time() -> None:
    assert recognise(COMBINED.replace(b"- - [", b"- Jane Doe [")).timestamp_ms == ms(2015, 5, 17, 10, 5, 3)


@pytest.mark.parametrize("day", [b"31/Feb/2015", b"17/Mai/2015", b"00/May/2015"])
def test_a_date_that_does_not_exist_is_no_time_but_the_client_stays(day: bytes) -> None:
    assert recognise(COMBINED.replace(b"17/May/2015", day)) == Stamp(None, b"83.149.9.216")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2015-05-17 10:05:03,250 INFO started", Stamp(ms(2015, 5, 17, 10, 5, 3) + 250, None, is_zoneless=True)),
        (b"[2015-05-17T10:05:03.123456789+02:00] x", Stamp(ms(2015, 5, 17, 8, 5, 3) + 123, None)),
        (b"<13>1 2015-05-17T10:05:03.5-0700 host app", Stamp(ms(2015, 5, 17, 17, 5, 3) + 500, b"host")),
        (b"level=info time=2015-05-17T10:05:03Z", Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
    ],
)
def test_an_iso_time_near_the_beginning_is_the_lines_time(line: bytes, expected: Stamp) -> None:
    assert recognise(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"timestamp": "2015-05-17T10:05:03Z", "host": "web1"}', Stamp(ms(2015, 5, 17, 10, 5, 3), b"web1")),
        (b'{"@timestamp": "2015-05-17T10:05:03.5Z", "host": {"name": "web2"}}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 500, b"web2")),
        (b'{"ts": 1431857103, "hostname": "web3"}', Stamp(ms(2015, 5, 17, 10, 5, 3), b"web3")),
        (b'{"time": 1431857103.003}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 3, None)),
        (b'{"timestamp": "soon", "time": 1431857103}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time_iso8601": "2015-05-17T10:05:03+00:00", "status": 200}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time_local": "17/May/2015:12:05:03 +0200"}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time": "2015-05-17 10:05:03"}', Stamp(ms(2015, 5, 17, 10, 5, 3), None, is_zoneless=True)),
        (b'{"timestamp": true, "host": 7}', NO_STAMP),
    ],
)
def test_a_json_line_is_read_by_the_usual_field_names(line: bytes, expected: Stamp) -> None:
    assert recognise(line) == expected


@pytest.mark.parametrize(
    "line", [b"", b"   at com.example.Main(Main.java:7)", b'{"broken": ', b"[1, 2]", b"\xff\xfe\x00", b"{" * 100_000]
)
def test_a_line_of_no_known_kind_has_no_stamp(line: bytes) -> None:
    assert recognise(line) == NO_STAMP


def test_an_iso_time_far_inside_a_line_is_data() -> None:
    assert recognise(b"x" * 200 + b" 2015-05-17T10:05:03Z") == NO_STAMP


@pytest.mark.parametrize(
    ("line", "first_ms", "again_ms"),
    [
        *((line, ms(2015, 5, 17, 8, 5, 3), None) for line in (b"2015-05-17 10:05:03 x", b'{"time": "2015-05-17T10:05:03"}')),
        (b"2026-10-25 02:30:00 x", ms(2026, 10, 25, 0, 30), ms(2026, 10, 25, 1, 30)),  # it comes twice
        (b"2026-03-29 02:30:00 x", ms(2026, 3, 29, 1, 30), None),  # clocks skip it: as if they had not
    ],
)
def test_a_time_without_a_zone_is_taken_in_the_zone_that_was_named(line: bytes, first_ms: int, again_ms: int | None) -> None:
    assert recognise(line, BERLIN) == Stamp(first_ms, None, is_zoneless=True, again_ms=again_ms)


TIME_MS = int(datetime(2026, 11, 25, 11, 50, 21, tzinfo=UTC).timestamp() * 1000)
POSTGRES = "psycopg.errors.UniqueViolation: Key (at)=(2015-01-01 00:00:00) already exists."
JAVA = "java.time.format.DateTimeParseException: Text '2015-01-01 00:00:00' could not be parsed"
BARE = "2015-01-01 00:00:00"


def detected(*lines: str, **options: str) -> TimestampExtractor:
    return detect([line.encode() for line in lines], TimeContext(), TimeOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("quoted", [POSTGRES, JAVA, "ValueError: 2015-01-01 00:00:00", f"    {BARE} | row", f"\t[{BARE}]"])
@pytest.mark.parametrize(
    "own",
    [
        "2026-11-25 11:50:21,000 ERROR app.db failed",
        "[2026-11-25 11:50:21,000] ERROR in app: failed",
        "\x1b[32m2026-11-25 11:50:21.000\x1b[0m | ERROR | app - failed",
    ],
)
@pytest.mark.parametrize("entries", [1, 3, 10])
def test_a_date_that_an_exception_quotes_is_no_time(own: str, quoted: str, entries: int) -> None:
    """Also where every entry ends with one, and where the file begins with one after a rotation."""
    lines = [quoted, *[own] * entries, quoted] if entries > 1 else [own, quoted]
    extractor = detected(*lines)
    assert extractor.stamp(own.encode()).timestamp_ms == TIME_MS
    assert extractor.stamp(quoted.encode()).timestamp_ms is None


@pytest.mark.parametrize("quoted", [POSTGRES, JAVA])
@pytest.mark.parametrize(
    "own",
    ["INFO  2026-11-25 11:50:21 started", "ERROR:app:2026-11-25 11:50:21:started", "web-1  | 2026-11-25T11:50:21Z started"],
)
def test_nor_is_it_where_a_level_or_a_name_comes_first(own: str, quoted: str) -> None:
    extractor = detected(*[own] * 9, f"Caused by: {quoted}")
    assert [extractor.stamp(line.encode()).timestamp_ms for line in (own, f"Caused by: {quoted}")] == [TIME_MS, None]


@pytest.mark.parametrize(
    "lines",
    [
        ["INFO 2026-11-25 11:50:21 x", "ERROR 2026-11-25 11:50:21 x", " WARN 2026-11-25 11:50:21 x"],
        ["[main] 2026-11-25 11:50:21 x", "[pool 1 thread 7] 2026-11-25 11:50:21 x", "[main] 2026-11-25 11:50:21 x"] * 4,
        ["10.0.0.1 - - [2026-11-25T11:50:21Z] x", "web1.example.org - Jane Doe [2026-11-25T11:50:21Z] x"] * 4,
        [*["10.0.0.1 - - [2026-11-25T11:50:21Z] x"] * 9, "10.0.0.1 - Jane van der Doe [2026-11-25T11:50:21Z] x"],
        ["one two 2026-11-25 11:50:21 x", "one 2026-11-25 11:50:21 x", "one two three four 2026-11-25 11:50:21 x"],
        ["42,jane,2026-11-25T11:50:21Z,x", *['42,"jane doe",2026-11-25T11:50:21Z,x'] * 9],
        ['level=info msg="one two three" time=2026-11-25T11:50:21Z', *["level=info msg=one time=2026-11-25T11:50:21Z"] * 9],
        [
            '{"message": "one two", "eventTime": "2026-11-25T11:50:21Z"}',
            *['{"message": "x", "eventTime": "2026-11-25T11:50:21Z"}'] * 9,
        ],
        ["\x1b[31m2026-11-25 11:50:21\x1b[0m x", *["2026-11-25 11:50:21 x"] * 9],
        ["\u25ba 2026-11-25 11:50:21 x", "web1: 2026-11-25 11:50:21 x", "db1:  2026-11-25 11:50:21 x"],
        ['level=info msg="one two three" ts=1795607421', *["level=info msg=one ts=1795607421"] * 9],
        ["[1795607421] x"] * 3,
        [*["2026-11-25 11:50:21 x"] * 4, *["INFO 2026-11-25 11:50:21 x"] * 6],
    ],
    ids=str,
)
def test_a_time_whose_place_differs_from_line_to_line_is_found(lines: list[str]) -> None:
    extractor = detected(*lines)
    assert {extractor.stamp(line.encode()).timestamp_ms for line in lines} == {TIME_MS}


def test_a_named_format_has_its_place_as_well() -> None:
    own, quoted = "25.11.2026 11:50:21 failed", "Key (at)=(01.01.2015 00:00:00) exists"
    extractor = detected(own, own, quoted, format_of="%d.%m.%Y %H:%M:%S")
    assert [extractor.stamp(line.encode()).timestamp_ms for line in (own, quoted)] == [TIME_MS, None]


def test_dates_in_the_lines_between_those_of_another_format_are_no_clock() -> None:
    """A quarter of the lines quote a date in ISO 8601, which none of this log's own lines has."""
    extractor = detected(*["26/11/25 11:50:21 ERROR Main: failed", "26/11/25 11:50:21 INFO Main: x", JAVA] * 5)
    assert (extractor.names, extractor.stamp(JAVA.encode()).timestamp_ms) == (("YY/MM/DD",), None)


def test_in_a_log_of_errors_most_dates_may_be_quoted() -> None:
    own = "2026-11-25 11:50:21 ERROR Main: failed"
    extractor = detected(POSTGRES, *[own, JAVA, POSTGRES] * 20)
    assert [extractor.stamp(line.encode()).timestamp_ms for line in (own, JAVA, POSTGRES)] == [TIME_MS, None, None]


def test_a_second_format_is_still_read_after_a_level() -> None:
    extractor = detected(*["26/11/25 11:50:21 INFO Main: x"] * 5, *["INFO 2026-11-25 11:50:21 x"] * 5)
    assert extractor.names == ("YY/MM/DD", "ISO 8601")
