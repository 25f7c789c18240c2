"""The timestamp format chosen for a file: each format alone, several together, and a refusal if none fits."""

from __future__ import annotations

import os
import re
import shlex
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from logbus.errors import UndatedLog
from logbus.parsing.times import TimeContext
from logbus.shipper import timestamp_extractor
from logbus.shipper.line_timestamps import by_format

WRITTEN = datetime(2015, 5, 17, 12, tzinfo=UTC)
NOW_MS = int(datetime(2026, 11, 25, tzinfo=UTC).timestamp() * 1000)
TIME = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def detected(*lines: str, written: datetime = WRITTEN, **options: object) -> timestamp_extractor.TimestampExtractor:
    times = timestamp_extractor.TimeOptions(**options)  # type: ignore[arg-type]
    return timestamp_extractor.detect([line.encode() for line in lines], TimeContext(times.zone or UTC, written), times)


def refusal(*lines: str, joins: bool = False, **options: object) -> str:
    """Why a file of these lines is refused; empty if it is not."""
    given = timestamp_extractor.TimeOptions(**options)  # type: ignore[arg-type]
    return timestamp_extractor.timestamp_problem(Path("a.log"), detected(*lines, **options), given, NOW_MS, joins=joins) or ""


# One line of each format as its program writes it, with the format's name, whether it has a zone, and the host it names.
FORMATS = [
    ("access log", '10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', True, b"10.0.0.7"),
    ("syslog (RFC 3164)", "May 17 10:05:03 combo sshd(pam_unix)[19939]: authentication failure", False, b"combo"),
    ("syslog (RFC 3164)", "<34>May 17 10:05:03 mymachine su: 'su root' failed", False, b"mymachine"),
    ("syslog (RFC 5424)", '<165>1 2015-05-17T10:05:03.000Z web1 evntslog - ID47 [x@1 a="b"] started', True, b"web1"),
    ("syslog (ISO 8601)", "2015-05-17T12:05:03.000123+02:00 web1 sshd[7]: Accepted publickey", True, b"web1"),
    ("syslog (ISO 8601)", "2015-05-17T10:05:03Z web1 kernel: usb 1-1: new device", True, b"web1"),
    ("ISO 8601", "2015-05-17T10:05:03Z started", True, None),
    ("ISO 8601", "2015-05-17T10:05:03Z INFO worker: a level is no host", True, None),
    ("ISO 8601", "2015-05-17 10:05:03.000 UTC [7] LOG:  checkpoint starting", True, None),
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
    extractor = detected(line, line)
    stamp = extractor.stamp(line.encode())
    assert (extractor.names, extractor.is_understood) == ((name,), True), "and no second name for the same times"
    assert (stamp.timestamp_ms, stamp.is_zoneless, stamp.host) == (ms(TIME), not has_zone, host)


@pytest.mark.parametrize(("name", "line", "has_zone", "host"), [one for one in FORMATS if not one[2]])
def test_a_time_without_a_zone_is_taken_in_the_one_that_was_named(name: str, line: str, has_zone: bool, host: object) -> None:
    berlin = detected(line, zone=ZoneInfo("Europe/Berlin"))
    assert berlin.stamp(line.encode()).timestamp_ms == ms(TIME - timedelta(hours=2))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "line",
    [
        "2015-05-17 07:05:03.000 -03 [17] app@shop LOG:  duration",
        "2015-05-17 18:05:03 UTC+8 started",
        "2015-05-17 13:05:03 GMT+3 started",
        "2015-05-17 12:05:03 UTC+02:00 started",
        "2015-05-17 12:05:03 GMT+0200 started",
        "2015-05-17 12:05:03 GMT +0200 started",
        "2015-05-17T12:05:03.000000000000+02:00 started",
        "2015-05-17\t10:05:03 Z started",
        "2015-05-17 10:05:03 Etc/UTC started",
        "[17-May-2015 12:05:03 Europe/Berlin] PHP Warning: x",
        "[17-May-2015 12:05:03 +0200]: x",
        "[17-May-2015 10:05:03 UTC] x",
        "17 May 2015 12:05:03 +0200 x",
        "2015/05/17 12:05:03 +0200 x",
        "15/05/17 12:05:03.000 +02:00 x",
        "May 17 12:05:03 +0200 web1 app: x",
        "May 17 10:05:03 2015 UTC web1 app: x",
        '{"time": "2015-05-17 12:05:03+02"}',
        "when=2015-05-17T12:05:03+02 level=info",
    ],
)
def test_a_zone_behind_the_time_is_read_and_wins_over_the_named_one(line: str, zone: str) -> None:
    stamp = detected(line, line, zone=ZoneInfo(zone)).stamp(line.encode())
    assert (stamp.timestamp_ms, stamp.is_zoneless) == (ms(TIME), False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2015-05-17 10:05:03 CEST x", "Its zone CEST is not read, because such names are ambiguous"),
        ("[CEST May 17 10:05:03] x", "Its zone CEST is not read"),
        ("2015-05-17 10:05:03 UTC+99 x", "Its zone cannot be read: no zone has the offset UTC"),
        ("2015/05/17 10:05:03 Europe/Berlni x", "Its zone cannot be read: there is no time zone Europe/Berlni"),
        ("2015-05-17 10:05:03 PM Monday", "it is read by --time-format '%Y-%m-%d %I:%M:%S %p'"),
        ("15/05/17 10:05:03 p.m. x", "Say how it is written"),
        ('{"date": "2015-05-17", "time": "10:05:03"}', "Say how it is written"),
    ],
)
def test_what_is_part_of_a_time_and_cannot_be_read_is_named_and_the_rest_is_no_time(line: str, said: str) -> None:
    assert said in refusal(line)


@pytest.mark.parametrize(
    "line", ["2015-05-17 10:05:03 -1 left", "2015-05-17 10:05:03 -40 degrees", "2015-05-17 10:05:03 App/Main x"]
)
def test_what_only_begins_like_a_zone_is_none(line: str) -> None:
    assert detected(line).stamp(line.encode())[::2] == (ms(TIME), True)


def test_of_a_time_that_comes_twice_an_abbreviation_says_which_one_it_is() -> None:
    zone, written = ZoneInfo("Europe/Berlin"), datetime(2015, 10, 25, 12, tzinfo=UTC)
    for name, hour in (("CEST", 0), ("CET", 1), ("MEZ", 1)):
        line = f"2015-10-25 02:30:00 {name} x"
        stamp = detected(line, zone=zone, written=written).stamp(line.encode())
        assert (stamp.timestamp_ms, stamp.again_ms) == (ms(datetime(2015, 10, 25, hour, 30, tzinfo=UTC)), None)


def test_a_date_in_a_message_is_no_time_of_its_line() -> None:
    lines = [f"May 17 10:05:{second:02d} web1 app: line" for second in range(60)]
    quoting = "May 17 10:06:00 web1 app: certificate expires 1999-01-01T00:00:00Z"
    extractor = detected(*lines, quoting)
    assert extractor.names == ("syslog (RFC 3164)",)
    assert extractor.stamp(quoting.encode()).timestamp_ms == ms(TIME.replace(minute=6, second=0))


def test_a_single_date_among_lines_without_times_dates_none_of_them() -> None:
    lines = [f"at the stroke of {number}: nothing" for number in range(300)]
    lines[183] = "at the stroke of 183: see 2015-05-17T10:05:03Z"
    extractor = detected(*lines)
    assert (extractor.names, extractor.dated, extractor.is_understood) == ((), 0, False)
    with pytest.raises(UndatedLog, match="300 of the first 300 lines have no time that is understood, such as line 1: 'at the"):
        timestamp_extractor.validate_timestamps(Path("odd.log"), extractor, timestamp_extractor.TimeOptions(), NOW_MS)


def test_lines_that_go_on_need_no_time_of_their_own() -> None:
    trace = ["\tat org.example.Main.run(Main.java:7)", "    ... 12 more", ""]
    extractor = detected("2015-05-17 10:05:03 ERROR failed", *trace, "2015-05-17 10:05:04 ERROR failed", *trace)
    assert (extractor.looked_at, extractor.dated, extractor.is_understood) == (2, 2, True)


def test_a_few_lines_of_another_kind_do_not_hide_what_the_others_say() -> None:
    """All lines have an ISO time near the start, but in the JSON objects that of another field comes first."""
    objects = ['{"started": "1999-01-01T00:00:00Z", "time": "2015-05-17T10:05:03Z", "host": "web1"}'] * 30
    extractor = detected(*objects, "2015-05-17T10:05:03Z banner")
    assert extractor.names == ("JSON", "ISO 8601")
    assert extractor.stamp(objects[0].encode())[:2] == (ms(TIME), b"web1")


def test_a_duration_is_no_time() -> None:
    line = '{"time": 0.012, "@timestamp": "2015-05-17T10:05:03Z"}'
    assert detected(line).stamp(line.encode()).timestamp_ms == ms(TIME)
    assert not detected('{"time": 12}').is_understood


def test_two_formats_of_one_file_are_both_read() -> None:
    lines = [*["2015-05-17T10:05:03Z app"] * 8, *['{"ts": 1431857103}'] * 2]
    assert detected(*lines).names == ("ISO 8601", "JSON")


@pytest.mark.parametrize(
    ("line", "written", "expected"),
    [
        ("Dec 31 23:59:59 web1 app: x", datetime(2016, 1, 1, 0, 1, tzinfo=UTC), datetime(2015, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("May 17 10:05:03 web1 app: x", WRITTEN, TIME),
        ("May 18 09:00:00 web1 app: x", WRITTEN, datetime(2015, 5, 18, 9, tzinfo=UTC)),  # a zone's offset ahead
        ("Jun 14 15:16:01 web1 app: x", WRITTEN, datetime(2014, 6, 14, 15, 16, 1, tzinfo=UTC)),
        ("Feb 29 10:00:00 web1 app: x", datetime(2017, 1, 3, tzinfo=UTC), datetime(2016, 2, 29, 10, tzinfo=UTC)),
        ("Feb 29 10:00:00 web1 app: x", datetime(2016, 2, 29, 11, tzinfo=UTC), datetime(2016, 2, 29, 10, tzinfo=UTC)),
        ("I0229 10:00:00.000000 7 a.go:1] x", datetime(2016, 3, 1, tzinfo=UTC), datetime(2016, 2, 29, 10, tzinfo=UTC)),
        ("E1231 23:59:59.000000 7 a.go:1] x", datetime(2016, 1, 1, tzinfo=UTC), datetime(2015, 12, 31, 23, 59, 59, tzinfo=UTC)),
        # The new year has already begun on a host whose clock is ahead, by a second or by its zone.
        ("Jan  1 00:00:00 web1 app: x", datetime(2015, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2016, 1, 1, tzinfo=UTC)),
        ("I0101 08:00:00.000000 7 a.go:1] x", datetime(2015, 12, 31, 23, tzinfo=UTC), datetime(2016, 1, 1, 8, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_year_is_the_newest_before_the_file_was_written(
    line: str, written: datetime, expected: datetime
) -> None:
    assert detected(line, written=written).stamp(line.encode()).timestamp_ms == ms(expected)


def test_a_new_year_begins_in_the_zone_of_the_lines() -> None:
    written = datetime(2015, 12, 31, 16, tzinfo=UTC)
    tokyo = detected("Jan  1 00:59:00 web1 app: x", written=written, zone=ZoneInfo("Asia/Tokyo"))
    assert tokyo.stamp(b"Jan  1 00:59:00 web1 app: x").timestamp_ms == ms(written - timedelta(minutes=1))
    assert tokyo.stamp(b"Dec 31 23:59:00 web1 app: x").timestamp_ms == ms(written - timedelta(minutes=61))


def test_a_leap_day_that_no_year_of_the_file_has_is_no_time() -> None:
    assert not detected("Feb 29 10:00:00 web1 app: x", written=datetime(2019, 3, 1, tzinfo=UTC)).is_understood


@pytest.mark.parametrize(
    ("line", "written", "expected"),
    [
        ("29 Feb 10:05:03 x", datetime(2016, 1, 15, tzinfo=UTC), None),
        ("29 Feb 10:05:03 x", datetime(2017, 1, 3, tzinfo=UTC), datetime(2016, 2, 29, 10, 5, 3, tzinfo=UTC)),
        ("31 Dec 23:59:59 x", datetime(2016, 1, 1, tzinfo=UTC), datetime(2015, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("01 Jan 00:00:01 x", datetime(2015, 12, 31, 23, 59, tzinfo=UTC), datetime(2016, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_a_format_without_a_year_follows_the_same_rule(line: str, written: datetime, expected: datetime | None) -> None:
    stamp = detected(line, written=written, format_of="%d %b %H:%M:%S").stamp(line.encode()).timestamp_ms
    assert stamp == (None if expected is None else ms(expected))


def test_a_format_with_a_zone_and_without_a_year_follows_it_too() -> None:
    line, written = "31 Dec 23:59:59 +0200 x", datetime(2016, 1, 1, tzinfo=UTC)
    stamp = detected(line, written=written, format_of="%d %b %H:%M:%S %z").stamp(line.encode())
    assert (stamp.timestamp_ms, stamp.is_zoneless) == (ms(datetime(2015, 12, 31, 21, 59, 59, tzinfo=UTC)), False)


@pytest.mark.parametrize(
    "line", ["Feb 30 10:00:00 web1 app: x", "2015/13/17 10:05:03 x", "99 May 2015 10:05:03 x", "Xyz 17 10:05:03 w x"]
)
def test_a_date_that_does_not_exist_is_no_time(line: str) -> None:
    assert not detected(line).is_understood


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
        ("%s", "42;jane;1431857103250", TIME + timedelta(milliseconds=250)),
        ("2:%s", "2:1431857103.25 x", TIME + timedelta(milliseconds=250)),
    ],
)
def test_a_format_that_was_named_is_read(format_of: str, line: str, expected: datetime) -> None:
    assert detected(line, format_of=format_of).stamp(line.encode()).timestamp_ms == ms(expected) // 1


def test_a_zone_by_its_name_alone_is_no_time_unless_the_named_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """strptime accepts the names of the machine's own zone but does not apply their offset: silently an hour off."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        line, format_of = "17.05.2015 12:05:03 CEST x", "%d.%m.%Y %H:%M:%S %Z"
        assert not detected(line, format_of=format_of).is_understood
        extractor = detected(line, format_of=format_of, zone=ZoneInfo("Europe/Berlin"))
        assert extractor.stamp(line.encode()).timestamp_ms == ms(TIME)
        assert not detected(line.replace("CEST", "CET"), format_of=format_of, zone=ZoneInfo("Europe/Berlin")).is_understood
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("format_of", "said"),
    [
        ("%d.%Q", "%Q is not one of strptime's directives"),
        ("dd.MM.yyyy", "has no directive"),
        ("%H:%M:%S", "does not say the day"),
        ("%d.%m.%Y %I:%M", "%I and %p need each other"),
        ("%d.%m.%Y %H:%M %p", "%I and %p need each other"),
    ],
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
    assert detected(line, field=field).stamp(line.encode()).timestamp_ms == ms(TIME)


def test_what_was_named_is_the_only_clock() -> None:
    line = '{"timestamp": "1999-01-01T00:00:00Z", "when": 1431857103}'
    assert detected(line, field="when").stamp(line.encode()).timestamp_ms == ms(TIME)
    assert not detected('{"timestamp": "1999-01-01T00:00:00Z"}', field="when").is_understood


def test_a_files_year_is_that_of_its_last_writing(tmp_path: Path) -> None:
    log = tmp_path / "auth.log"
    log.write_text("May 17 10:05:03 web1 app: x\n")
    os.utime(log, (WRITTEN.timestamp(), WRITTEN.timestamp()))
    assert timestamp_extractor.extractor_for(log, 1_000, timestamp_extractor.TimeOptions()).stamp(
        b"May 17 10:05:03 web1 app: x"
    ).timestamp_ms == ms(TIME)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("17.05.2015 10:05:03 started", "--time-format '%d.%m.%Y %H:%M:%S'"),
        ("05/17/2015 10:05:03 AM started", "--time-format '%m/%d/%Y %I:%M:%S %p'"),
        ("05/17/2015 10:05:03 started", "--time-format '%m/%d/%Y %H:%M:%S'"),
        ("17/05/2015 10:05:03 started", "--time-format '%d/%m/%Y %H:%M:%S'"),
        ("Sun May 17 10:05:03 2015 started", "--time-format '%a %b %d %H:%M:%S %Y'"),
        ("[20150517T100503] started", "--time-format '%Y%m%dT%H%M%S'"),
        ("20150517T120503+0200 started", "--time-format '%Y%m%dT%H%M%S%z'"),
        ("150517 10:05:03 [Note] started", "--time-format '%y%m%d %H:%M:%S'"),
        ("42,jane,1431857103", "--time-format '%s'"),
        ('{"id": 4711, "created": 1431857103}', "--time-field created"),
        (f'{{"x": "{"y" * 200}", "event": {{"raised at": "2015-05-17T10:05:03Z"}}}}', "--time-field 'event.raised at'"),
        ('{"when": "17.05.2015 10:05:03"}', "--time-field when --time-format '%d.%m.%Y %H:%M:%S'"),
        ("level=info at=1431857103 user=7", "--time-field at"),
        ("1:M 17 May 2015 10:05:03.000 * Ready", "--time-format '%d %b %Y %H:%M:%S.%f'"),
        ("date=2015-05-17 time=10:05:03 user=jane", "--time-format 'date=%Y-%m-%d time=%H:%M:%S'"),
        ("17-05-15 10:05:03 x", "--time-format '%d-%m-%y %H:%M:%S'"),
        ("[17/May/2015 10:05:03] Relay attempt", "--time-format '%d/%b/%Y %H:%M:%S'"),
        ("Sun May 17 10:05:03 UTC 2015", "--time-format '%a %b %d %H:%M:%S %Z %Y'"),
        ("17.05.2015 12:05:03 +0200 x", "--time-format '%d.%m.%Y %H:%M:%S %z'"),
        ("- 1431857103 2015.05.17 node7 May 17 12:05:03 x", "--time-format '%s'"),
    ],
)
def test_the_options_that_are_proposed_read_the_line(line: str, options: str) -> None:
    assert re.search(f"such as line 2: .*it is read by {re.escape(options)}\\. ", refusal("a header", line))
    named = dict(zip(*[iter(shlex.split(options))] * 2, strict=True))
    given = {"field": named.get("--time-field"), "format_of": named.get("--time-format")}
    assert detected(line, **given).stamp(line.encode()).timestamp_ms == ms(TIME)


def test_a_format_is_proposed_that_reads_all_lines_and_another_is_named_beside_it_if_it_does_too() -> None:
    proposal = refusal("11-05-2015 02:09:40 +0300 x", "13-05-2015 02:09:40 +0300 x")
    assert "it is read by --time-format '%d-%m-%Y %H:%M:%S %z'. " in proposal
    two = r"%m-%d-%Y .* \(--time-format '%d-%m-%Y .*' reads as many lines, as other times: compare"
    assert re.search(two, refusal("03-04-2015 02:09:40 x", "04-05-2015 02:09:40 x"))


@pytest.mark.parametrize(
    ("format_of", "line", "said"),
    [
        ("%Y-%m-%d", "2015-05-17 10:05:03 x", "the time of day 10:05"),
        ("%b %d %H:%M:%S", "Sun May 17 10:05:03 UTC 2014", "the year"),
        ("%b %d %H:%M:%S", "2014 May 17 10:05:03 x", "the year 2014"),
        ("%b %d %H:%M:%S", "[PDT May 17 10:05:03] x", "the zone PDT"),
        (None, "PDT 2015-05-17 10:05:03 x", "the zone PDT"),
    ],
)
def test_a_format_that_leaves_a_part_of_the_time_unread_is_refused(format_of: str | None, line: str, said: str) -> None:
    assert re.search(f"leaves {said}.* beside its times unread", refusal(line, format_of=format_of))


def test_a_file_a_sixth_of_whose_lines_look_like_the_others_and_have_no_time_is_refused() -> None:
    lines = ["2015-05-17 10:05:03 x"] * 10 + ["2015-05-17 1:05:03 x"] * 2
    said = "2 of the first 12 lines look like those with a time, .* such as line 11: '2015-05-17 1:05"
    assert re.search(said, refusal(*lines))
    assert not refusal(*lines, allows_undated=True, accepts_times=True)
    assert not refusal(*lines[:-1])
    assert not refusal(*lines[:10], "java.lang.IllegalStateException: no", "Caused by: 7 others")


def test_if_few_lines_begin_with_a_time_and_the_others_may_continue_them_joining_is_proposed() -> None:
    trace = [f"#{number} /app/a.php({number}): x" for number in range(20)]
    record = ["[2015-05-17 10:05:03] local.ERROR: no", "[stacktrace]", *trace]
    extractor = detected(*record * 3)
    assert (extractor.names, extractor.dated, extractor.looked_at) == (("ISO 8601",), 3, 66)
    said = r"3 of the first 66 lines begin with a time \(ISO 8601\).*--join-lines makes them one record"
    assert re.search(said, refusal(*record * 3))
    assert not refusal(*record * 3, joins=True)
    assert not detected(*record[1:], *record).begins, "the first line would have no record to join"


AHEAD = "2026-11-25 05:00:00 x"  # of a host that is five hours ahead, at midnight UTC


def test_a_file_most_of_whose_times_are_ahead_of_now_is_refused_with_what_may_be_the_cause() -> None:
    earlier = "2026-11-24 20:00:00 x"
    assert not refusal(AHEAD, earlier)
    assert "2 of its first 3 times are more than an hour ahead of now: it writes local" in refusal(AHEAD, earlier, AHEAD)
    assert not refusal(AHEAD, AHEAD, zone=ZoneInfo("Asia/Karachi"))
    assert "ahead of now: a clock is wrong" in refusal("2026-11-25T05:00:00Z x"), "no zone is asked for if they have one"


@pytest.mark.parametrize(
    "line",
    [
        *("started, and nobody knows when", "customer 1234567 called", '{"user": 7, "ok": true}'),
        '{"customer": 4111111111}',  # a number that cannot be the file's time
    ],
)
def test_where_no_option_reads_the_line_the_error_shows_how_one_is_written(line: str) -> None:
    how = "Say how it is written: --time-format '%d.%m.%Y %H:%M:%S', or in which field: --time-field NAME."
    assert how in refusal(line)


def test_a_file_of_one_line_is_refused_in_the_singular() -> None:
    assert refusal("banner").startswith("a.log: its only line has no time that is understood: 'banner'. ")


def test_directives_are_no_lines_without_a_time_and_other_comments_are() -> None:
    row = "2015-05-17 10:05:03 GET /"
    assert detected("#Version: 1.0", "#Fields: date time cs-method", "#Remark: x", row).looked_at == 1
    assert detected("# a comment", "# and another", row).looked_at == 3
