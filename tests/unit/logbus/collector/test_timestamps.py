from __future__ import annotations

from datetime import UTC, datetime

import pytest
from logbus.collector.timestamps import NO_STAMP, Stamp, recognise


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]


COMBINED = b'83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "agent"'


def test_an_access_log_line_gives_its_time_and_its_client() -> None:
    assert recognise(COMBINED) == Stamp(ms(2015, 5, 17, 10, 5, 3), b"83.149.9.216")


@pytest.mark.parametrize(("zone", "hour"), [(b"+0200", 8), (b"-0330", 13)], ids=["east", "west, half an hour"])
def test_the_zone_of_an_access_log_line_counts(zone: bytes, hour: int) -> None:
    stamp = recognise(COMBINED.replace(b"+0000", zone))
    assert stamp.timestamp_ms == ms(2015, 5, 17, hour, 35 if zone == b"-0330" else 5, 3)


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
    assert recognise(line) == Stamp(expected, None)


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
        (b'{"time": "17/May/2015:10:05:03 +0000"}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
        (b'{"timestamp": "soon", "time": 1431857103}', Stamp(ms(2015, 5, 17, 10, 5, 3), None)),
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
