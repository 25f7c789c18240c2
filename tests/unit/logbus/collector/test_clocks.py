"""By which clock a file is read: every format by itself, in company, and refused where nobody can tell."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from logbus.collector.clocks import LineClock, TimeOptions, choose, clock_of, refuse_undated
from logbus.collector.errors import UndatedLog
from logbus.collector.timestamps import TimeContext, by_format

WRITTEN = datetime(2015, 5, 17, 12, tzinfo=UTC)
TIME = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def clock(*lines: str, written: datetime = WRITTEN, **options: object) -> LineClock:
    times = TimeOptions(**options)  # type: ignore[arg-type]
    return choose([line.encode() for line in lines], TimeContext(times.zone, written), times)


# One line of each format, as its program writes it, with the name of the format, its zone or none, and the host that it names.
FORMATS = [
    ("access log", '10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', True, b"10.0.0.7"),
    ("syslog (RFC 3164)", "May 17 10:05:03 combo sshd(pam_unix)[19939]: authentication failure", False, b"combo"),
    ("syslog (RFC 3164)", "<34>May 17 10:05:03 mymachine su: 'su root' failed", False, b"mymachine"),
    ("syslog (RFC 5424)", '<165>1 2015-05-17T10:05:03.000Z web1 evntslog - ID47 [x@1 a="b"] started', True, b"web1"),
    ("ISO 8601", "2015-05-17T10:05:03Z started", True, None),
    ("ISO 8601", "2015-05-17 10:05:03,000 - INFO  [main:QuorumPeer@913] - FOLLOWING", False, None),
    ("ISO 8601", "INFO 2015-05-17T12:05:03+02:00 started", True, None),
    ("seconds since 1970", "1431857103 started", True, None),
    ("seconds since 1970", "1431857103000 started", True, None),
    ("seconds since 1970", "level=info ts=1431857103.0 msg=started", True, None),
    ("JSON", '{"msec": "1431857103.000", "status": 200, "host": "web1"}', True, b"web1"),
    ("JSON", '{"time_iso8601": "2015-05-17T10:05:03+00:00", "status": 200}', True, None),
    ("DD Mon YYYY", "17 May 2015 10:05:03,000 [main] INFO  org.example.App - started", False, None),
    ("YY/MM/DD", "15/05/17 10:05:03 INFO SparkContext: Running Spark version 1.3.0", False, None),
    ("YY/MM/DD", "2015/05/17 10:05:03 [error] 7#7: *1 open() failed", False, None),
    ("YYMMDD HHMMSS", "150517 100503 143 INFO dfs.DataNode$PacketResponder: PacketResponder 1 terminating", False, None),
    ("klog", "I0517 10:05:03.000123       7 controller.go:12] started", False, None),
    ("Apache's error log", "[Sun May 17 10:05:03.000123 2015] [core:error] [pid 7] File does not exist", False, None),
]


@pytest.mark.parametrize(("name", "line", "has_zone", "host"), FORMATS)
def test_each_format_is_known_by_itself(name: str, line: str, has_zone: bool, host: bytes | None) -> None:
    found = clock(line, line)
    stamp = found.stamp(line.encode())
    assert (found.names[0], found.is_understood) == (name, True)
    assert (stamp.timestamp_ms, stamp.is_zoneless, stamp.host) == (ms(TIME), not has_zone, host)


@pytest.mark.parametrize(("name", "line", "has_zone", "host"), [one for one in FORMATS if not one[2]])
def test_a_time_without_a_zone_is_taken_in_the_one_that_was_named(name: str, line: str, has_zone: bool, host: object) -> None:
    berlin = clock(line, zone=ZoneInfo("Europe/Berlin"))
    assert berlin.stamp(line.encode()).timestamp_ms == ms(TIME - timedelta(hours=2))


def test_a_date_in_a_message_is_no_time_of_its_line() -> None:
    lines = [f"May 17 10:05:{second:02d} web1 app: line" for second in range(60)]
    quoting = "May 17 10:06:00 web1 app: certificate expires 1999-01-01T00:00:00Z"
    found = clock(*lines, quoting)
    assert found.names == ("syslog (RFC 3164)",)
    assert found.stamp(quoting.encode()).timestamp_ms == ms(TIME.replace(minute=6, second=0))


def test_one_date_among_lines_that_nobody_understands_dates_none_of_them(tmp_path: Path) -> None:
    lines = [f"at the stroke of {number}: nothing" for number in range(300)]
    lines[183] = "at the stroke of 183: see 2015-05-17T10:05:03Z"
    found = clock(*lines)
    assert (found.names, found.dated, found.is_understood) == ((), 0, False)
    with pytest.raises(
        UndatedLog, match="300 of the first 300 lines have no time that is understood, such as line 1: 'at the stroke"
    ):
        refuse_undated(tmp_path / "odd.log", found)


def test_lines_that_go_on_need_no_time_of_their_own() -> None:
    trace = ["\tat org.example.Main.run(Main.java:7)", "    ... 12 more", ""]
    found = clock("2015-05-17 10:05:03 ERROR failed", *trace, "2015-05-17 10:05:04 ERROR failed", *trace)
    assert (found.looked_at, found.dated, found.is_understood) == (2, 2, True)


def test_two_formats_of_one_file_are_both_read() -> None:
    lines = [*["2015-05-17T10:05:03Z app"] * 8, *['{"ts": 1431857103}'] * 2]
    assert clock(*lines).names == ("ISO 8601", "JSON")


@pytest.mark.parametrize(
    ("line", "written", "expected"),
    [
        ("Dec 31 23:59:59 web1 app: x", datetime(2016, 1, 1, 0, 1, tzinfo=UTC), datetime(2015, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("May 17 10:05:03 web1 app: x", WRITTEN, TIME),
        ("May 18 09:00:00 web1 app: x", WRITTEN, datetime(2015, 5, 18, 9, tzinfo=UTC)),  # its clock is a zone ahead
        ("Jun 14 15:16:01 web1 app: x", WRITTEN, datetime(2014, 6, 14, 15, 16, 1, tzinfo=UTC)),
        ("Feb 29 10:00:00 web1 app: x", datetime(2017, 1, 3, tzinfo=UTC), datetime(2016, 2, 29, 10, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_year_is_the_newest_before_the_file_was_written(
    line: str, written: datetime, expected: datetime
) -> None:
    assert clock(line, written=written).stamp(line.encode()).timestamp_ms == ms(expected)


@pytest.mark.parametrize(
    "line", ["Feb 30 10:00:00 web1 app: x", "2015/13/17 10:05:03 x", "99 May 2015 10:05:03 x", "Xyz 17 10:05:03 w x"]
)
def test_a_date_that_does_not_exist_is_no_time(line: str) -> None:
    assert not clock(line).is_understood


@pytest.mark.parametrize(
    ("format_of", "line", "expected"),
    [
        ("%d.%m.%Y %H:%M:%S", "[17.05.2015 10:05:03] x", TIME),
        ("%d.%m.%Y %H:%M:%S.%f", "17.05.2015 10:05:03.250417119 x", TIME + timedelta(microseconds=250_417)),
        ("%m/%d/%Y %I:%M:%S %p", "05/17/2015 10:05:03 AM x", TIME),
        ("%d %b %H:%M:%S", "17 May 10:05:03 x", TIME),
        ("%Y%m%dT%H%M%S%z", "20150517T120503+0200 x", TIME),
        ("%d.%m.%Y %H:%M:%S %Z", "17.05.2015 10:05:03 UTC x", TIME),
        ("%s", "at 1431857103 x", TIME),
    ],
)
def test_a_format_that_was_named_is_read(format_of: str, line: str, expected: datetime) -> None:
    assert clock(line, format_of=format_of).stamp(line.encode()).timestamp_ms == ms(expected) // 1


def test_a_zone_by_its_name_alone_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """strptime takes the names of the machine's own zone, and does not apply what they stand for: an hour off, in silence."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert not clock("17.05.2015 12:05:03 CEST x", format_of="%d.%m.%Y %H:%M:%S %Z").is_understood
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("format_of", "said"), [("%d.%Q", "%Q is not one of strptime's directives"), ("dd.MM.yyyy", "has no directive")]
)
def test_a_format_that_cannot_be_is_refused(format_of: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        by_format(format_of)


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("when", '{"when": "2015-05-17T10:05:03Z"}'),
        ("log.at", '{"log": {"at": 1431857103}}'),
        ("log.at", '{"log.at": 1431857103}'),
        ("when", 'level=info when="2015-05-17T10:05:03Z" x=1'),
        ("when", "level=info when=1431857103 x=1"),
    ],
)
def test_a_field_that_was_named_is_read(field: str, line: str) -> None:
    assert clock(line, field=field).stamp(line.encode()).timestamp_ms == ms(TIME)


def test_what_was_named_is_the_only_clock() -> None:
    line = '{"timestamp": "1999-01-01T00:00:00Z", "when": 1431857103}'
    assert clock(line, field="when").stamp(line.encode()).timestamp_ms == ms(TIME)
    assert not clock('{"timestamp": "1999-01-01T00:00:00Z"}', field="when").is_understood


def test_a_files_year_is_that_of_its_last_writing(tmp_path: Path) -> None:
    log = tmp_path / "auth.log"
    log.write_text("May 17 10:05:03 web1 app: x\n")
    os.utime(log, (WRITTEN.timestamp(), WRITTEN.timestamp()))
    assert clock_of(log, 1_000, TimeOptions()).stamp(b"May 17 10:05:03 web1 app: x").timestamp_ms == ms(TIME)


@pytest.mark.parametrize(
    ("line", "format_of"),
    [
        ("17.05.2015 10:05:03 started", "%d.%m.%Y %H:%M:%S"),
        ("05/17/2015 10:05:03 AM started", "%m/%d/%Y %I:%M:%S %p"),
        ("05/17/2015 10:05:03 started", "%m/%d/%Y %H:%M:%S"),
        ("17/05/2015 10:05:03 started", "%d/%m/%Y %H:%M:%S"),
        ("Sun May 17 10:05:03 2015 started", "%a %b %d %H:%M:%S %Y"),
        ("[20150517T100503] started", "%Y%m%dT%H%M%S"),
        ("started, and nobody knows when", "%d.%m.%Y %H:%M:%S"),
    ],
)
def test_the_format_that_is_proposed_is_one_that_reads_the_line(line: str, format_of: str) -> None:
    found = clock(line)
    with pytest.raises(UndatedLog, match=f"--time-format '{format_of}'"):
        refuse_undated(Path("a.log"), found)
    if "nobody" not in line:
        assert clock(line, format_of=format_of).stamp(line.encode()).timestamp_ms == ms(TIME)
