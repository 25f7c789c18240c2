from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from logbus.collector.timestamps import NO_STAMP, Stamp

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
        (b"2015-05-17T10:05:03Z started", ms(2015, 5, 17, 10, 5, 3)),
        (b"2015-05-17 10:05:03,250 INFO started", ms(2015, 5, 17, 10, 5, 3) + 250),
        (b"[2015-05-17T10:05:03.123456789+02:00] x", ms(2015, 5, 17, 8, 5, 3) + 123),
        (b"<13>1 2015-05-17T10:05:03.5-0700 host app", ms(2015, 5, 17, 17, 5, 3) + 500),
        (b"level=info time=2015-05-17T10:05:03Z", ms(2015, 5, 17, 10, 5, 3)),
        (b"2015-05-17 10:05:03 two words", ms(2015, 5, 17, 10, 5, 3)),
    ],
)
def test_an_iso_time_near_the_beginning_is_the_lines_time(line: bytes, expected: int) -> None:
    host = b"host" if line.startswith(b"<13>") else None
    assert recognise(line) == Stamp(expected, host, is_zoneless=b"5-05-17 10:05:03" in line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"timestamp": "2015-05-17T10:05:03Z", "host": "web1"}', Stamp(ms(2015, 5, 17, 10, 5, 3), b"web1")),
        (b'{"@timestamp": "2015-05-17T10:05:03.5Z", "host": {"name": "web2"}}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 500, b"web2")),
        (b'{"ts": 1431857103, "hostname": "web3"}', Stamp(ms(2015, 5, 17, 10, 5, 3), b"web3")),
        (b'{"ts": 1431857103.25}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 250, None)),
        (b'{"time": 1431857103000}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time": 1431857103000000}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time": 1431857103000000000}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"time": 1431857103250000000}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 250, None)),
        (b'{"time": 1431857103.003}', Stamp(ms(2015, 5, 17, 10, 5, 3) + 3, None)),
        (b'{"time": "17/May/2015:10:05:03 +0000"}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
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


@pytest.mark.parametrize("line", [b"2015-05-17 10:05:03 x", b'{"time": "2015-05-17T10:05:03"}'])
def test_a_time_without_a_zone_is_taken_in_the_zone_that_was_named(line: bytes) -> None:
    assert recognise(line, BERLIN) == Stamp(ms(2015, 5, 17, 8, 5, 3), None, is_zoneless=True)


def test_a_time_that_comes_twice_has_both() -> None:
    first, second = ms(2026, 10, 25, 0, 30), ms(2026, 10, 25, 1, 30)
    assert recognise(b"2026-10-25 02:30:00 x", BERLIN) == Stamp(first, None, is_zoneless=True, again_ms=second)


def test_a_time_that_clocks_skip_is_taken_as_if_they_had_not() -> None:
    assert recognise(b"2026-03-29 02:30:00 x", BERLIN) == Stamp(ms(2026, 3, 29, 1, 30), None, is_zoneless=True)
