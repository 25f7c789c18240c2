"""A date that a line quotes is not its time: where most lines of a file have theirs, all have it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from logbus.collector.clocks import LineClock, TimeOptions, choose
from logbus.parsing.times import TimeContext

TIME_MS = int(datetime(2026, 11, 25, 11, 50, 21, tzinfo=UTC).timestamp() * 1000)
POSTGRES = "psycopg.errors.UniqueViolation: Key (at)=(2015-01-01 00:00:00) already exists."
JAVA = "java.time.format.DateTimeParseException: Text '2015-01-01 00:00:00' could not be parsed"
BARE = "2015-01-01 00:00:00"


def clock(*lines: str, **options: str) -> LineClock:
    return choose([line.encode() for line in lines], TimeContext(), TimeOptions(**options))  # type: ignore[arg-type]


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
    found = clock(*lines)
    assert found.stamp(own.encode()).timestamp_ms == TIME_MS
    assert found.stamp(quoted.encode()).timestamp_ms is None


@pytest.mark.parametrize("quoted", [POSTGRES, JAVA])
@pytest.mark.parametrize(
    "own",
    ["INFO  2026-11-25 11:50:21 started", "ERROR:app:2026-11-25 11:50:21:started", "web-1  | 2026-11-25T11:50:21Z started"],
)
def test_nor_is_it_where_a_level_or_a_name_comes_first(own: str, quoted: str) -> None:
    found = clock(*[own] * 9, f"Caused by: {quoted}")
    assert [found.stamp(line.encode()).timestamp_ms for line in (own, f"Caused by: {quoted}")] == [TIME_MS, None]


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
    ],
    ids=str,
)
def test_a_time_whose_place_differs_from_line_to_line_is_found(lines: list[str]) -> None:
    found = clock(*lines)
    assert {found.stamp(line.encode()).timestamp_ms for line in lines} == {TIME_MS}


def test_a_named_format_has_its_place_as_well() -> None:
    own, quoted = "25.11.2026 11:50:21 failed", "Key (at)=(01.01.2015 00:00:00) exists"
    found = clock(own, own, quoted, format_of="%d.%m.%Y %H:%M:%S")
    assert [found.stamp(line.encode()).timestamp_ms for line in (own, quoted)] == [TIME_MS, None]


def test_dates_in_the_lines_between_those_of_another_format_are_no_clock() -> None:
    """A quarter of the lines quote a date in ISO 8601, which none of this log's own lines has."""
    found = clock(*["26/11/25 11:50:21 ERROR Main: failed", "26/11/25 11:50:21 INFO Main: x", JAVA] * 5)
    assert (found.names, found.stamp(JAVA.encode()).timestamp_ms) == (("YY/MM/DD",), None)


def test_in_a_log_of_errors_most_dates_may_be_quoted() -> None:
    own = "2026-11-25 11:50:21 ERROR Main: failed"
    found = clock(POSTGRES, *[own, JAVA, POSTGRES] * 20)
    assert [found.stamp(line.encode()).timestamp_ms for line in (own, JAVA, POSTGRES)] == [TIME_MS, None, None]


def test_a_time_after_a_level_counts_though_others_begin_their_lines() -> None:
    lines = [*["2026-11-25 11:50:21 x"] * 4, *["INFO 2026-11-25 11:50:21 x"] * 6]
    found = clock(*lines)
    assert {found.stamp(line.encode()).timestamp_ms for line in lines} == {TIME_MS}


def test_a_second_format_is_still_read_after_a_level() -> None:
    found = clock(*["26/11/25 11:50:21 INFO Main: x"] * 5, *["INFO 2026-11-25 11:50:21 x"] * 5)
    assert found.names == ("YY/MM/DD", "ISO 8601")
