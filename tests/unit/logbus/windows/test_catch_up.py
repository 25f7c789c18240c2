from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.windows.boundaries import milliseconds
from logbus.windows.catch_up import closed_intervals
from logbus.windows.model import Interval, Pipeline

from tests.support.fake_log import FakeLog

PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines", lateness=timedelta(minutes=5))
NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))


def at(hour: int, minute: int = 0, day: int = 17) -> int:
    return milliseconds(datetime(2015, 5, day, hour, minute, tzinfo=UTC))


@pytest.fixture
def log() -> FakeLog:
    fake = FakeLog()
    fake.create("t", partitions=2)
    return fake


def hours(found: list[Interval]) -> list[int]:
    return [interval.start.hour for interval in found]


def test_a_log_without_records_has_nothing_to_catch_up(log: FakeLog) -> None:
    assert closed_intervals(PIPELINE, log, NOW) == []


def test_from_the_hour_of_the_first_record_to_that_of_the_last_quiet_hours_included(log: FakeLog) -> None:
    log.append("t", at(10, 5), at(10, 59), partition=0)
    log.append("t", at(13, 1), at(14, 59), partition=1)
    assert hours(closed_intervals(PIPELINE, log, NOW)) == [10, 11, 12, 13, 14]


def test_a_record_on_the_hour_belongs_to_the_hour_it_begins(log: FakeLog) -> None:
    log.append("t", at(10), at(11))
    assert hours(closed_intervals(PIPELINE, log, NOW)) == [10, 11]


def test_the_newest_record_counts_wherever_it_lies(log: FakeLog) -> None:
    log.append("t", at(10), at(15), at(12))
    assert hours(closed_intervals(PIPELINE, log, NOW))[-1] == 15


@pytest.mark.parametrize(("minute", "last"), [(4, 10), (5, 11)])
def test_an_hour_is_left_out_until_its_lateness_has_passed(log: FakeLog, minute: int, last: int) -> None:
    log.append("t", at(10), at(11, 30), at(12, 1))
    now = datetime(2015, 5, 17, 12, minute, tzinfo=UTC)
    assert hours(closed_intervals(PIPELINE, log, now))[-1] == last


def test_a_stamp_of_2099_neither_begins_nor_ends_the_hours(log: FakeLog) -> None:
    log.append("t", IN_2099, at(10, 5), IN_2099, at(11, 5))
    log.append("t", at(10, 30), partition=1)
    assert hours(closed_intervals(PIPELINE, log, NOW)) == [10, 11]


def test_a_log_of_nothing_but_the_future_has_no_hours(log: FakeLog) -> None:
    log.append("t", IN_2099)
    assert closed_intervals(PIPELINE, log, NOW) == []


def test_since_until_and_limit_choose_among_the_hours(log: FakeLog) -> None:
    log.append("t", at(10), at(20))
    since, until = datetime(2015, 5, 17, 12, 30, tzinfo=UTC), datetime(2015, 5, 17, 15, 30, tzinfo=UTC)
    assert hours(closed_intervals(PIPELINE, log, NOW, since=since, until=until)) == [12, 13, 14]
    assert hours(closed_intervals(PIPELINE, log, NOW, limit=2)) == [10, 11]


def test_no_hour_begins_before_the_pipeline_does(log: FakeLog) -> None:
    log.append("t", at(10), at(13))
    late = Pipeline(name="p", topic="t", table="t", parse="lines", starts_at=datetime(2015, 5, 17, 12, tzinfo=UTC))
    assert hours(closed_intervals(late, log, NOW)) == [12, 13]


def test_intervals_are_as_long_as_the_pipeline_says(log: FakeLog) -> None:
    log.append("t", at(10, 20), at(10, 50))
    quarters = Pipeline(name="p", topic="t", table="t", parse="lines", interval=timedelta(minutes=15))
    assert [interval.start.minute for interval in closed_intervals(quarters, log, NOW)] == [15, 30, 45]
