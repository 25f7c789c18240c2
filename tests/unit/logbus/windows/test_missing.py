"""What is missing, in chains built here over an in-memory log. It is 20:30, and hours close five minutes late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from logbus.model import FrozenWindow, Interval, OffsetRange, Pipeline
from logbus.status.lag import lag_over
from logbus.windows.boundaries import take_snapshot
from logbus.windows.missing import QUESTIONS_MAX, Gap, Missing, behind, empty, find_gaps, ledger_gaps
from logbus.windows.pipeline_chains import Anchor, PipelineChain, tail_of

from tests.support.fake_log import NO_TIMESTAMP, FakeLog
from tests.support.retention import at, chain, hourly, stamps

NOW = at(20.5)
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")
YEARS = 24 * 365


@pytest.fixture
def log() -> FakeLog:
    return FakeLog.of("t", [])


def window(hour: int, start: int, end: int, *, loaded: bool = True) -> FrozenWindow:
    part = OffsetRange(topic="t", partition=0, start_offset=start, end_offset=end)
    return hourly(hour, loaded=loaded, audited=False, ranges=(part,))


def gaps_of(
    log: FakeLog,
    windows: PipelineChain,
    *,
    now: datetime = NOW,
    pipeline: Pipeline = PIPELINE,
    since: datetime | None = None,
    until: datetime | None = None,
    questions_max: int | None = QUESTIONS_MAX,
) -> tuple[Gap, ...]:
    tails = {part: tail_of(windows, part) for part in log.topic("t").partitions}
    seen = take_snapshot(log, pipeline, tails, now)
    return find_gaps(log, pipeline, windows, seen, since=since, until=until, questions_max=questions_max)


def said(gaps: Sequence[Gap]) -> list[tuple[int, int, str]]:
    """For each gap, its first hour, its end hour and its kind."""
    first = at(0)
    hours = [((gap.interval.start - first) // PIPELINE.interval, (gap.interval.end - first) // PIPELINE.interval) for gap in gaps]
    kinds = ["empty" if gap.is_empty else str(gap.missing) for gap in gaps]
    return [(start, end, kind) for (start, end), kind in zip(hours, kinds, strict=True)]


def test_a_frozen_window_that_is_not_loaded_waits_if_it_holds_a_record(log: FakeLog) -> None:
    log.append("t", *stamps(9.5, 11.5))
    windows = [window(9, 0, 1), window(10, 1, 1, loaded=False), window(11, 1, 2, loaded=False)]
    found = gaps_of(log, chain(windows))
    assert [(gap.missing, gap.is_empty) for gap in found] == [(Missing.NOT_LOADED, True), (Missing.NOT_LOADED, False)]
    lossy = replace(windows[1], head_unknown=True)  # what it held is unknown
    assert [gap.is_empty for gap in gaps_of(log, chain([windows[0], lossy, windows[2]]))] == [False, False]


def test_records_stamped_before_the_last_window_wait_in_the_next_hour(log: FakeLog) -> None:
    """An older log is shipped after newer hours are loaded: the hour after the last window takes it, whatever its timestamps."""
    log.append("t", *stamps(9.5, 10.5), *stamps(2.1, 3.1, 4.1))
    found = gaps_of(log, chain([window(9, 0, 1), window(10, 1, 2)]))
    assert said(found) == [(11, 12, "not frozen")]
    assert said(gaps_of(log, chain([window(9, 0, 1), window(10, 1, 2)]), now=at(11.5))) == []  # that hour is still open
    log.append("t", *stamps(15.5))
    found = gaps_of(log, chain([window(9, 0, 1), window(10, 1, 2)]))
    assert said(found) == [(11, 12, "not frozen"), (12, 15, "empty"), (15, 16, "not frozen")]


@pytest.mark.parametrize("stamp", [NO_TIMESTAMP, *stamps(80 * YEARS)])
def test_records_without_a_usable_time_wait_in_the_last_closed_hour(log: FakeLog, stamp: int) -> None:
    log.append("t", stamp, stamp)
    found = gaps_of(log, chain([]))
    assert said(found) == [(19, 20, "not frozen")]
    assert lag_over(PIPELINE, chain([]), log, NOW, (0,)).hours_behind == 1


def test_unstamped_records_behind_the_last_window_wait_in_the_next_hour(log: FakeLog) -> None:
    log.append("t", *stamps(9.5), NO_TIMESTAMP)
    assert said(gaps_of(log, chain([window(9, 0, 1)]))) == [(10, 11, "not frozen")]


def test_ten_years_between_two_logs_are_empty_and_found_with_few_questions(log: FakeLog) -> None:
    log.append("t", *stamps(*(hour + 0.5 for hour in range(24))), *stamps(10 * YEARS + 0.5, 10 * YEARS + 3.5))
    now = at(10 * YEARS + 20.5)
    asked: list[str] = []
    log.interrupt = asked.append
    found = gaps_of(log, chain([]), now=now)
    assert (behind(found), empty(found)) == (26, 10 * YEARS - 24 + 2)
    assert asked.count("first_at_or_after") < 150


def test_what_is_not_told_apart_for_want_of_questions_waits(log: FakeLog) -> None:
    log.append("t", *stamps(1.5, 15.5))
    assert said(gaps_of(log, chain([]), questions_max=0)) == [(1, 20, "not frozen")]


def test_a_span_that_is_asked_for_is_empty_before_the_first_record_and_behind_the_last(log: FakeLog) -> None:
    log.append("t", *stamps(9.5))
    found = gaps_of(log, chain([]), since=at(7.5), until=at(12))
    assert said(found) == [(7, 9, "empty"), (9, 10, "not frozen"), (10, 12, "empty")]
    assert said(gaps_of(log, chain([]), since=at(10), until=at(30))) == [(10, 20, "empty")]


def test_no_hour_lies_before_the_pipelines_start(log: FakeLog) -> None:
    log.append("t", *stamps(9.5, 12.5))
    late = replace(PIPELINE, starts_at=at(11))
    windows = chain([], anchors={0: Anchor(offset=1, at=at(11))}, begins_at=at(11))
    assert said(gaps_of(log, windows, pipeline=late, since=at(3))) == [(11, 12, "empty"), (12, 13, "not frozen")]


def test_hours_whose_records_retention_may_have_taken_are_not_empty(log: FakeLog) -> None:
    log.append("t", *stamps(9.5, 11.5, 12.5, 14.5))
    log.delete_records("t", before_offset=3)
    assert said(gaps_of(log, chain([window(9, 0, 1)]))) == [(10, 15, "not frozen")]
    log.delete_records("t", before_offset=4)
    assert said(gaps_of(log, chain([window(9, 0, 1)]))) == [(10, 11, "not frozen")]
    assert said(gaps_of(log, chain([window(9, 0, 1), window(15, 4, 4)]))) == [(10, 15, "not frozen")]


def test_after_a_rebase_nothing_before_the_first_record_of_the_new_topic_is_empty(log: FakeLog) -> None:
    log.append("t", *stamps(12.5, 15.5))
    former = replace(window(8, 7, 9, loaded=False), topic_id="t-0")
    rebased = chain([], anchors={0: Anchor(offset=0, at=at(9))}, begins_at=at(9), former=(former,))
    found = gaps_of(log, rebased)
    assert said(found) == [(8, 9, "not loaded"), (9, 13, "not frozen"), (13, 15, "empty"), (15, 16, "not frozen")]


def test_an_empty_window_behind_the_last_record_makes_the_years_before_it_no_gap(log: FakeLog) -> None:
    """A DAG that is switched on for an old log loads the hour that has just ended."""
    log.append("t", *stamps(9.5))
    late = at(YEARS)
    windows = [window(9, 0, 1), replace(window(0, 1, 1), interval=Interval(late, at(YEARS + 1)))]
    assert gaps_of(log, chain(windows), now=at(YEARS + 3)) == ()
    left_out = chain(windows[1:], anchors={0: Anchor(offset=1, at=at(10))}, left_out=Interval(at(9), at(10)))
    assert gaps_of(log, left_out, now=at(YEARS + 3)) == ()
    log.append("t", *stamps(YEARS + 1.5))
    found = gaps_of(log, left_out, now=at(YEARS + 3))
    assert [(gap.count, gap.is_empty) for gap in found] == [(YEARS - 10, True), (1, False)]


def test_a_stamp_from_the_future_hides_no_hour(log: FakeLog) -> None:
    log.append("t", *stamps(9.5, 80 * YEARS, 12.5))
    assert said(gaps_of(log, chain([]))) == [(9, 10, "not frozen"), (10, 12, "empty"), (12, 13, "not frozen")]
    assert said(gaps_of(log, chain([window(9, 0, 2)]))) == [(10, 12, "empty"), (12, 13, "not frozen")]
    assert said(gaps_of(log, chain([window(9, 0, 1), window(14, 3, 3)]))) == [
        *((10, 11, "not frozen"), (11, 12, "empty"), (12, 13, "not frozen")),
    ]


def test_hours_inside_a_long_window_are_not_missing(log: FakeLog) -> None:
    log.append("t", *stamps(9.5, 13.5))
    long = replace(window(9, 0, 1), interval=Interval(at(9), at(12)))
    assert said(gaps_of(log, chain([long]))) == [(12, 13, "empty"), (13, 14, "not frozen")]
    odd = replace(window(9, 0, 1), interval=Interval(at(9), at(12.5)))
    assert said(gaps_of(log, chain([odd]))) == [(13, 14, "not frozen")]


def test_quarters_of_an_hour_are_counted_as_such(log: FakeLog) -> None:
    log.append("t", *stamps(9.1, 10.1))
    quarters = replace(PIPELINE, interval=timedelta(minutes=15))
    found = gaps_of(log, chain([], grid=quarters.grid), pipeline=quarters)
    assert [(gap.count, gap.is_empty) for gap in found] == [(1, False), (3, True), (1, False)]


def test_without_the_log_holes_and_windows_that_are_not_loaded_are_shown_and_nobody_knows_what_is_empty() -> None:
    windows = chain([window(9, 0, 1), window(10, 1, 2, loaded=False), window(13, 2, 2)])
    assert said(ledger_gaps(PIPELINE, windows)) == [(10, 11, "not loaded"), (11, 13, "not frozen")]
