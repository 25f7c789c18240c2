from __future__ import annotations

import gzip
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from logbus.errors import UnreadableLog
from logbus.parsing.times import TimeContext
from logbus.shipper.line_timestamps import iso_8601, json_object
from logbus.shipper.merged_lines import EARLIEST_MS, LineReading, ReadingNotes, TimeOf, TimestampedLine, merged, months_away
from logbus.shipper.sources import Fingerprint, Source, identify
from logbus.shipper.timestamp_extractor import AHEAD_MS_MAX, TimeOptions, TimestampExtractor, extractor_for

NOW_MS = 1_800_000_000_000
BEGIN = 1_431_857_000  # the instant from which these tests count seconds
READING = LineReading(now_ms=NOW_MS, line_bytes_max=1000, include_partial_line=False)


def write(path: Path, *lines: str, mtime: int = 1_700_000_000) -> Source:
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (mtime, mtime))
    return Source(source_id=path.name, path=str(path), device=0, inode=0, head=Fingerprint())


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]


def json_line(second: int, text: str = "") -> str:
    return f'{{"ts": {BEGIN + second}, "text": "{text}"}}'


def after_begin(line: TimestampedLine) -> float:
    return line.timestamp_ms / 1000 - BEGIN


def test_a_line_without_a_time_has_that_of_the_line_before(tmp_path: Path) -> None:
    source = write(tmp_path / "a", json_line(100), "  at Main.java", json_line(200), "  at Other.java")
    lines = list(merged([source], READING))
    assert [after_begin(line) for line in lines] == [100, 100, 200, 200]
    assert [line.time_of for line in lines] == [TimeOf.LINE, TimeOf.LINE_BEFORE] * 2


def test_lines_before_any_time_have_the_first_time_that_follows(tmp_path: Path) -> None:
    lines = list(merged([write(tmp_path / "a", "# banner", json_line(100), "  continued")], READING))
    assert [after_begin(line) for line in lines] == [100] * 3
    assert [line.time_of for line in lines] == [TimeOf.LINE_AFTER, TimeOf.LINE, TimeOf.LINE_BEFORE]


def test_a_file_without_any_time_has_the_time_it_was_written(tmp_path: Path) -> None:
    lines = list(merged([write(tmp_path / "a", "one", "two", mtime=1_234)], READING))
    assert [(line.timestamp_ms, line.time_of) for line in lines] == [(1_234_000, TimeOf.FILE)] * 2


BERLIN = READING._replace(times=TimeOptions(zone=ZoneInfo("Europe/Berlin")))


def local(*times: str) -> list[str]:
    return [f"2026-10-25 {time} line" for time in times]


def test_a_time_without_a_zone_is_taken_in_the_zone_that_was_named_and_marked(tmp_path: Path) -> None:
    source = write(tmp_path / "a", "2026-11-22 10:00:00 local", "2026-11-22T10:00:00Z not local", "  continued")
    lines = list(merged([source], BERLIN))
    assert [line.timestamp_ms for line in lines] == [ms(2026, 11, 22, 9), ms(2026, 11, 22, 10), ms(2026, 11, 22, 10)]
    assert [line.is_zoneless for line in lines] == [True, False, False]


def test_the_hour_that_comes_twice_in_autumn_goes_on(tmp_path: Path) -> None:
    """02:00 to 03:00 occurs twice on the night Berlin's clocks go back; lines slightly out of order stay that way."""
    source = write(tmp_path / "a", *local("01:59:59", "02:30:00", "02:59:59", "02:59:58", "02:00:01", "02:50:00", "03:00:00"))
    times = [line.timestamp_ms for line in merged([source], BERLIN)]
    day = (2026, 10, 24, 23, 59, 59), (2026, 10, 25, 0, 30), (2026, 10, 25, 0, 59, 59), (2026, 10, 25, 0, 59, 58)
    assert times == [ms(*at) for at in (*day, (2026, 10, 25, 1, 0, 1), (2026, 10, 25, 1, 50), (2026, 10, 25, 2))]


def test_a_time_ahead_of_what_brokers_accept_is_not_believed_and_counted_apart(tmp_path: Path) -> None:
    ahead = NOW_MS // 1000 + AHEAD_MS_MAX // 1000 - BEGIN
    lines = list(merged([write(tmp_path / "a", json_line(100), json_line(ahead + 1), "  continued", json_line(ahead))], READING))
    assert [after_begin(line) for line in lines] == [100, 100, 100, ahead]
    assert [line.time_of for line in lines] == [TimeOf.LINE, TimeOf.LINE_BEFORE, TimeOf.LINE_BEFORE, TimeOf.LINE]
    assert [line.is_ahead for line in lines] == [False, True, False, False]


def test_a_time_of_1970_is_that_of_a_clock_which_was_lost(tmp_path: Path) -> None:
    source = write(tmp_path / "a", json_line(100), "1970-01-01T00:00:07Z booted", "1971-01-01T00:00:00Z", json_line(200))
    both = TimestampExtractor(names=(), recognisers=(json_object, iso_8601), around=TimeContext())
    lines = merged([source], READING._replace(extractors={"a": both}))
    assert [after_begin(line) for line in lines] == [100, 100, EARLIEST_MS / 1000 - BEGIN, 200]


def test_a_second_run_goes_on_from_the_last_time_it_knew(tmp_path: Path) -> None:
    first = json_line(100)
    at_ms, position = (BEGIN + 100) * 1000, len(first) + 1
    resumed = replace(write(tmp_path / "a", first, "  continued"), position=position, timestamp_ms=at_ms)
    rest = TimestampedLine(at_ms, "a", position, position + 12, b"  continued", None, TimeOf.LINE_BEFORE)
    assert list(merged([resumed], READING)) == [rest]


def test_files_are_merged_by_time_and_each_keeps_its_order(tmp_path: Path) -> None:
    first = write(tmp_path / "one", json_line(10), json_line(30), json_line(20), json_line(50))
    two = write(tmp_path / "two", json_line(15), "  continued", json_line(40))
    lines = [(line.source_id, after_begin(line)) for line in merged([first, two], READING)]
    assert lines == [("one", 10), ("two", 15), ("two", 15), ("one", 30), ("one", 20), ("two", 40), ("one", 50)]


def test_a_line_too_long_keeps_its_place_without_its_text(tmp_path: Path) -> None:
    lines = list(merged([write(tmp_path / "a", json_line(100), json_line(200, "x" * 2000), json_line(300))], READING))
    assert [(after_begin(line), line.text is None) for line in lines] == [(100, False), (100, True), (300, False)]


def test_a_damaged_file_ends_alone_where_it_is_noted_and_the_reading_elsewhere(tmp_path: Path) -> None:
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress("".join(f"{json_line(second)}\n" for second in range(50_000)).encode())[:-2_000])
    broken = Source(source_id="packed.gz", path=str(packed), device=0, inode=0, head=Fingerprint())
    fine = write(tmp_path / "fine", json_line(0), json_line(99_999))
    notes = ReadingNotes()
    lines = list(merged([broken, fine], READING, notes))
    assert [after_begin(line) for line in lines if line.source_id == "fine"] == [0, 99_999]
    assert 0 < len(lines) - 2 < 50_000, "what comes before the damage is read"
    assert [str(error).partition(":")[0] for error in notes.damaged] == [f"cannot read {packed} to its end"]
    assert "What was read before is sent" in str(notes.damaged[0])
    with pytest.raises(UnreadableLog, match=r"packed\.gz"):
        list(merged([broken], READING))


@pytest.mark.parametrize("successor", [True, False], ids=["another file has its name", "none has"])
def test_a_file_that_was_renamed_since_it_was_identified_waits_for_the_next_run(successor: bool, tmp_path: Path) -> None:
    """The file that now has its name would be read from the middle, and noted as the rest of the renamed one."""
    log = tmp_path / "a.log"
    write(log, json_line(1), json_line(2))
    (source,) = identify([log], [], new_id=lambda: "a")
    reading = READING._replace(extractors={"a": extractor_for(log, READING.line_bytes_max, READING.times)})
    log.rename(tmp_path / "a.log.1")
    if successor:
        write(log, *(json_line(second) for second in range(10, 20)))
    assert list(merged([replace(source, position=10, timestamp_ms=0)], reading)) == []


JOINING = READING._replace(joins=True)
TRACE = ["2015-05-17T10:00:00Z ERROR failed", "java.lang.IllegalStateException: no", "\tat Main.run(Main.java:7)", ""]


def records(source: Source, reading: LineReading = JOINING) -> list[tuple[int, int, bytes | None]]:
    return [(line.position, line.end, line.text) for line in merged([source], reading)]


def test_lines_that_go_on_are_one_record_with_the_line_before(tmp_path: Path) -> None:
    source = write(tmp_path / "a", *TRACE, "2015-05-17T10:00:01Z INFO next")
    whole = "\n".join(TRACE).encode()
    follows = len(whole) + 1
    assert records(source) == [(0, follows, whole), (follows, follows + 31, b"2015-05-17T10:00:01Z INFO next")]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_joined_record_is_the_files_own_bytes(line_end: bytes, tmp_path: Path) -> None:
    source = write(tmp_path / "a")
    content = line_end.join([*(line.encode() for line in TRACE[:3]), b"2015-05-17T10:00:01Z next", b""])
    Path(source.path).write_bytes(content)
    os.utime(source.path, (1_700_000_000, 1_700_000_000))
    for position, end, text in records(source):
        assert text is not None
        assert content[position : position + len(text)] == text
        assert content[position + len(text) : end] == line_end


def test_a_trace_that_quotes_a_date_stays_whole_and_at_its_time(tmp_path: Path) -> None:
    """The file begins in the middle of a trace, as after a rotation."""
    quoting = "psycopg.errors.UniqueViolation: Key (at)=(2015-01-01 00:00:00) already exists."
    trace = ["Traceback (most recent call last):", '  File "app.py", line 7, in run', quoting]
    own = [f"2026-11-25 11:50:2{second},123 ERROR app.db failed" for second in range(3)]
    source = write(tmp_path / "a", quoting, *(line for entry in own for line in (entry, *trace)))
    lines = list(merged([source], JOINING))
    assert [line.text for line in lines] == [quoting.encode(), *("\n".join([entry, *trace]).encode() for entry in own)]
    assert [line.timestamp_ms for line in lines] == [ms(2026, 11, 25, 11, 50, second, 123_000) for second in (20, 20, 21, 22)]


@pytest.mark.parametrize(
    ("days", "away"),
    [
        ({16_436: 3, 20_000: 97}, {16_436: 3}),
        ({20_000: 97, 20_100: 2, 20_200: 1}, {20_100: 2, 20_200: 1}),
        ({20_000: 97, 20_050: 3}, {}),
        ({16_436: 30, 20_000: 70}, {}),  # a log that rested for years
        ({20_000: 1}, {}),
        ({}, {}),
    ],
)
def test_a_few_records_months_away_from_the_others_are_told_apart(days: dict[int, int], away: dict[int, int]) -> None:
    assert months_away(days) == away


def cri(second: int, stream: str, tag: str, text: str) -> str:
    return f"2015-05-17T10:00:{second:02d}.123456789Z {stream} {tag} {text}"


def docker(second: int, stream: str, text: str) -> str:
    return f'{{"log":"{text}","stream":"{stream}","time":"2015-05-17T10:00:{second:02d}.1Z"}}'


PIECE = "x" * (16 << 10)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [cri(1, "stdout", "P", "one "), cri(1, "stdout", "P", "two "), cri(1, "stdout", "F:tag", ""), cri(2, "stdout", "F", "x")],
            {0: cri(1, "stdout", "F", "one two "), 3: cri(2, "stdout", "F", "x")},
        ),
        (  # records keep the order of their first pieces
            [cri(1, "stdout", "P", "one "), cri(1, "stderr", "F", "a"), cri(1, "stderr", "P", "b"), cri(1, "stdout", "F", "two"),
             cri(2, "stderr", "F", "c"), cri(2, "stdout", "F", "three")],
            {0: cri(1, "stdout", "F", "one two"), 1: cri(1, "stderr", "F", "a"), 2: cri(1, "stderr", "F", "bc"),
             5: cri(2, "stdout", "F", "three")},
        ),
        (  # its rest never came
            [cri(1, "stdout", "P", "one "), cri(2, "stderr", "F", "a"), cri(7, "stdout", "F", "new")],
            {0: cri(1, "stdout", "P", "one "), 1: cri(2, "stderr", "F", "a"), 2: cri(7, "stdout", "F", "new")},
        ),
        (
            [docker(1, "stdout", PIECE), docker(1, "stderr", "a\\n"), docker(1, "stdout", "two\\n"), docker(1, "stdout", "x\\n")],
            {0: docker(1, "stdout", PIECE + "two\\n"), 1: docker(1, "stderr", "a\\n"), 3: docker(1, "stdout", "x\\n")},
        ),
        (  # what a container wrote last, and a whole line of 16 KiB that ends with a backslash and an n
            [docker(1, "stdout", "done"), docker(1, "stdout", PIECE + "\\n"), docker(2, "stdout", PIECE + "\\\\n"),
             docker(2, "stdout", "2\\n")],
            {0: docker(1, "stdout", "done"), 1: docker(1, "stdout", PIECE + "\\n"),
             2: docker(2, "stdout", PIECE + "\\\\n2\\n")},
        ),
        (["2015-05-17T10:00:01Z stdout is P", "2015-05-17T10:00:01Z F"], {0: "2015-05-17T10:00:01Z stdout is P", 1: "2015-05-17T10:00:01Z F"}),
    ],
    ids=["cri", "two streams", "late", "docker", "docker whole", "other"],
)  # fmt: skip
@pytest.mark.parametrize("joins", [False, True])
def test_a_line_that_a_container_runtime_cut_is_one_record(
    lines: list[str], expected: dict[int, str], joins: bool, tmp_path: Path
) -> None:
    source = write(tmp_path / "a", *lines)
    reading = READING._replace(line_bytes_max=100_000, joins=joins)
    read = list(merged([source], reading))
    begins = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines) + 1)]
    assert {line.position: line.text for line in read} == {begins[number]: text.encode() for number, text in expected.items()}
    content = Path(source.path).read_bytes()
    for number, line in enumerate(read, 1):
        first_text = line.first_text or line.text or b""
        assert content[line.position :].startswith(first_text + b"\n")
        if not line.is_followed:  # a run that ended here goes on with the next record
            rest = list(merged([replace(source, position=line.end, timestamp_ms=0)], reading))
            assert [line.text for line in rest] == [line.text for line in read[number:]]


def test_a_line_that_is_still_being_written_in_pieces_waits_with_what_lies_between_them(tmp_path: Path) -> None:
    lines = [cri(1, "stdout", "F", "one"), cri(1, "stdout", "P", "two "), cri(1, "stderr", "F", "a")]
    notes = ReadingNotes()
    for mtime, expected in ((NOW_MS // 1000, [0]), (NOW_MS // 1000 - 6, [0, 1, 2])):
        source = write(tmp_path / "a", *lines, mtime=mtime)
        texts = [line.text for line in merged([source], READING, notes)]
        assert texts == [lines[number].encode() for number in expected]
        assert notes.waiting == {"a"}


def test_pieces_that_would_make_too_long_a_line_are_sent_in_more_than_one(tmp_path: Path) -> None:
    source = write(tmp_path / "a", *[cri(1, "stdout", "P", str(number) * 400) for number in range(4)], cri(1, "stdout", "F", ""))
    texts = [line.text or b"" for line in merged([source], READING)]
    assert [text[text.index(b"stdout") :] for text in texts] == [
        b"stdout P " + b"0" * 400 + b"1" * 400,
        b"stdout F " + b"2" * 400 + b"3" * 400,
    ]


def test_the_last_record_waits_while_its_file_is_being_written(tmp_path: Path) -> None:
    lines = ["2015-05-17T10:00:00Z one", "  more", "2015-05-17T10:00:01Z two"]
    fresh = write(tmp_path / "a", *lines, mtime=NOW_MS // 1000)
    assert [text for _, _, text in records(fresh)] == [b"2015-05-17T10:00:00Z one\n  more"]
    settled = write(tmp_path / "a", *lines, mtime=NOW_MS // 1000 - 6)
    assert [text for _, _, text in records(settled)][1:] == [b"2015-05-17T10:00:01Z two"]
    assert len(records(fresh, JOINING._replace(include_partial_line=True))) == 2


def test_a_record_grows_no_longer_than_a_line_may_be(tmp_path: Path) -> None:
    source = write(tmp_path / "a", "2015-05-17T10:00:00Z one", *["  " + "x" * 400] * 4)
    lines = records(source)
    assert [len(text or b"") <= READING.line_bytes_max for _, _, text in lines] == [True] * len(lines)
    assert b"".join((text or b"") + b"\n" for _, _, text in lines) == Path(source.path).read_bytes()
