"""The windows a load takes, with a real ledger: those of `lag` and `window ls` only. It is 2026, the log is from 2015."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from logbus.errors import TooManyWindows
from logbus.model import Interval
from logbus.status.lag import lag_of
from logbus.windows import catch_up, recovery

from tests.support.ledgers import NOW, World, at, intervals_of, stamps
from tests.support.loads import load_hours


@pytest.fixture
def two(world: World) -> World:
    """A topic with two partitions."""
    world.log.create("t", 2)
    return world


def hours(world: World, now: datetime = NOW, **span: datetime | int) -> list[int]:
    return [interval.start.hour for interval in intervals_of(world.ledger.plan_load("p", world.log, now, **span))]  # type: ignore[arg-type]


def missing(world: World, now: datetime = NOW) -> list[datetime]:
    return [part.start for part in intervals_of(world.ledger.plan_load("p", world.log, now, only_missing=True))]


@pytest.mark.parametrize(("minute", "last"), [(4, 10), (5, 11)])
def test_an_hour_is_left_out_until_its_lateness_has_passed(world: World, minute: int, last: int) -> None:
    world.fill(10, 11.5, 12.02)
    assert hours(world, at(12) + timedelta(minutes=minute))[-1] == last


def test_an_older_log_shipped_after_newer_hours_are_loaded_is_what_lag_counts_and_a_load_takes(world: World) -> None:
    """`lag` used to report one hour behind, `window ls` nothing, and a load of missing windows took none."""
    world.fill(10.5, 11.5)
    load_hours(world, 10, 11)
    world.log.append("t", *stamps(3.5, 4.5, 5.5))
    lag = lag_of(world.ledger.engine, world.log, "p", NOW)
    assert (lag.hours_behind, lag.oldest_hour, lag.records) == (1, at(12), 3)
    assert lag.gaps == world.ledger.gaps("p", world.log, NOW)
    assert missing(world) == [at(12)]
    load_hours(world, 12)
    assert missing(world) == []
    assert [part.count for part in world.ledger.window("p", at(12)).ranges] == [3]


def test_since_until_and_limit_choose_among_the_hours(world: World) -> None:
    world.fill(10, 20)
    assert hours(world, since=at(12.5), until=at(15.5)) == [12, 13, 14]
    assert hours(world, limit=2) == [10, 11]


def test_a_load_of_everything_takes_loaded_windows_again_as_far_as_their_records_are_there(world: World) -> None:
    world.fill(8.5, 10.5, 11.5, 13.5)
    load_hours(world, 8, 9, 10)
    assert hours(world) == [8, 9, 10, 11, 12, 13]
    world.log.delete_records("t", before_offset=1)
    assert hours(world) == [10, 11, 12, 13]
    assert missing(world) == [at(11), at(12), at(13)]


def test_windows_of_a_former_topic_that_were_not_loaded_are_missing_after_a_rebase(world: World) -> None:
    world.fill(8.5, freeze=[8])
    world.log.fill("t", stamps(11.5))
    recovery.rebase(world.ledger.engine, "p", world.log, NOW)
    gaps = world.ledger.gaps("p", world.log, NOW)
    assert [(gap.interval, str(gap.missing), gap.is_empty) for gap in gaps] == [
        (Interval(at(8), at(9)), "not loaded", False),
        (Interval(at(9), at(12)), "not frozen", False),
    ]


def test_an_empty_span_of_years_is_frozen_in_bulk_and_hours_touch(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "WINDOWS_PER_TRANSACTION", 100)
    two.log.append("t", *stamps(10.5, 400.5), partition=0)
    two.log.append("t", *stamps(11.5), partition=1)
    two.register()
    plan = two.ledger.plan_load("p", two.log, NOW, only_missing=True)
    assert (plan.count, plan.empty) == (391, 388)
    questions: list[str] = []
    two.log.interrupt = questions.append
    steps: list[int] = []
    windows = two.ledger.freeze_plan(plan, two.log, NOW, steps.append)
    assert len(questions) < 100  # five windows query the log; hour by hour it would be five thousand queries
    assert (sum(steps), len(windows), two.one("select count(*) from logbus.window")) == (391, 391, 391)
    assert all(one.interval.end == other.interval.start for one, other in zip(windows, windows[1:], strict=False))
    for part in (0, 1):
        ranges = [window.ranges[part] for window in windows]
        assert all(one.end_offset == other.start_offset for one, other in zip(ranges, ranges[1:], strict=False))
        assert (ranges[0].start_offset, ranges[-1].end_offset) == (0, 2 - part)
    found = lag_of(two.ledger.engine, two.log, "p", NOW)
    assert (found.hours_behind, found.hours_empty) == (3, 0)
    questions.clear()
    again = two.ledger.plan_load("p", two.log, NOW, only_missing=True)
    assert two.ledger.freeze_plan(again, two.log, NOW) == [window for window in windows if window.record_count]
    assert len(questions) < 30
    assert two.ledger.freeze_plan(plan, two.log, NOW) == windows  # a plan that another process has frozen in the meantime


def test_an_hour_inside_a_span_frozen_in_bulk_is_frozen_for_ever_like_any_other(world: World) -> None:
    world.fill(10.5, 40.5)
    world.ledger.freeze_plan(world.ledger.plan_load("p", world.log, NOW), world.log, NOW)
    world.log.append("t", *stamps(20.5))
    assert world.freeze(20).record_count == 0
    between = "at > '2015-05-17 11:00+00' and at < '2015-05-18 16:00+00'"
    assert world.rows(f'select "offset" from logbus.boundary where {between}') == [(1,)] * 28


def test_hours_that_got_a_record_since_they_were_planned_are_frozen_one_by_one(world: World) -> None:
    world.fill(10.5)
    plan = world.ledger.plan_load("p", world.log, NOW, since=at(8), until=at(20))
    world.log.append("t", *stamps(15.5))
    windows = world.ledger.freeze_plan(plan, world.log, NOW)
    assert [window.interval.start.hour for window in windows if window.record_count] == [10, 15]
    assert len(windows) == 12


def test_more_than_a_thousand_windows_are_refused_with_what_to_type(world: World) -> None:
    world.fill(10.5, 3_000.5)
    plan = world.ledger.plan_load("p", world.log, NOW)
    with pytest.raises(TooManyWindows, match="2991 windows of p from 2015-05-17T10:00:00Z on .* 2989 of them without any record"):
        plan.refuse_more_than(1_000, "--yes begins them")
    plan.refuse_more_than(2_991, "")
