from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from logbus.errors import LogChanged
from logbus.model import HOUR, Interval, OffsetRange, Pipeline
from logbus.streams.epochs import EpochPlanner, FrozenHour, PlannedPart, Reached, limited, reached_in

from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW, at, hour, stamps

AT_THE_BEGINNING = Reached(position=0)
FUTURE = 4_000_000_000_000  # milliseconds: the year 2096


def planner(
    log: FakeLog, offsets_max: int = 1_000, interval: timedelta = HOUR, starts_at: datetime | None = None
) -> EpochPlanner:
    pipeline = Pipeline(name="p", topic="t", table="t", parse="lines", interval=interval, starts_at=starts_at)
    return EpochPlanner(pipeline=pipeline, log=log, now=lambda: NOW, offsets_max=offsets_max)


def planned(plan: EpochPlanner, reached: Reached = AT_THE_BEGINNING) -> list[tuple[int, int, float]]:
    """Of partition 0, up to where the log ends: start, end, and the hour of the day."""
    ends = plan.log.end_offsets("t", [0], plan.pipeline.isolation_level)
    return [(part.start_offset, part.end_offset, (part.hour - at(0)) / HOUR) for part in plan.plan({0: reached}, ends)]


def test_a_part_ends_where_the_first_record_of_a_later_hour_is() -> None:
    log = FakeLog.of("t", stamps(10, 10.5, 11, 10.9, 13.1, 12.2, 13.5))
    assert planned(planner(log)) == [(0, 2, 10), (2, 4, 11), (4, 7, 13)]


def test_what_is_frozen_decides_and_not_what_is_foreseen() -> None:
    """Windows were frozen when the log ended at 3: hour 11 ends there, although no record of hour 12 has come."""
    log = FakeLog.of("t", stamps(10, 10.5, 11, 11.1, 11.2, 12))
    reached = Reached(position=0, boundaries=[(at(10), 0), (at(11), 2), (at(12), 3)])
    assert planned(planner(log), reached) == [(0, 2, 10), (2, 3, 11), (3, 6, 12)]


def test_between_frozen_windows_hours_are_foreseen() -> None:
    log = FakeLog.of("t", stamps(10, 11, 12, 13, 14))
    reached = Reached(position=1, boundaries=[(at(11), 1), (at(14), 4), (at(15), 5)])
    assert planned(planner(log), reached) == [(1, 2, 11), (2, 3, 12), (3, 4, 13), (4, 5, 14)]


def test_the_end_of_the_log_is_no_boundary_until_a_window_is_frozen_there() -> None:
    log = FakeLog.of("t", stamps(10))
    assert planned(planner(log)) == [(0, 1, 10)]
    log.append("t", *stamps(10.1, 12))
    assert planned(planner(log), Reached(position=1, hour=at(10))) == [(1, 2, 10), (2, 3, 12)]


def test_a_stamp_in_the_future_begins_no_hour() -> None:
    log = FakeLog.of("t", [*stamps(10), FUTURE, *stamps(10.5, 11, 11.5)])
    assert planned(planner(log)) == [(0, 3, 10), (3, 5, 11)]


def test_records_without_a_stamp_at_the_head_go_with_the_first_that_has_one() -> None:
    assert planned(planner(FakeLog.of("t", [-1, FUTURE, *stamps(12.5, 13)]))) == [(0, 3, 12), (3, 4, 13)]
    assert planned(planner(FakeLog.of("t", [-1, FUTURE]))) == []


def test_a_pipeline_begins_with_the_hour_that_it_starts_at() -> None:
    assert planned(planner(FakeLog.of("t", stamps(8, 9, 10.5, 11)), starts_at=at(10))) == [(0, 3, 10), (3, 4, 11)]


def test_windows_of_other_lengths_are_cut_like_hours() -> None:
    log = FakeLog.of("t", stamps(10, 10.2, 10.3, 10.6))
    assert planned(planner(log, interval=timedelta(minutes=15))) == [(0, 2, 10), (2, 3, 10.25), (3, 4, 10.5)]


def test_an_epoch_has_no_more_offsets_than_allowed_of_each_partition_in_proportion() -> None:
    assert limited({0: 0, 1: 100, 2: 5}, {0: 900, 1: 200, 2: 5}, 100) == {0: 90, 1: 110, 2: 5}
    assert limited({0: 0, 1: 0}, {0: 3, 1: 1_000_000}, 10) == {0: 1, 1: 9}
    assert limited({0: 7}, {0: 10}, 3) == {0: 10}


def test_each_epoch_goes_on_where_the_last_one_ended_and_comes_to_the_same_hours() -> None:
    """However the log is cut into epochs."""
    arrivals = stamps(10, 10.4, 11.9, 10.1, 12, 12, 15, 14, 15.5, 16)
    whole = planned(planner(FakeLog.of("t", arrivals)))
    hours = {offset: number for start, end, number in whole for offset in range(start, end)}
    for size in range(1, len(arrivals)):
        plan, reached = planner(FakeLog.of("t", arrivals), offsets_max=size), Reached(position=0)
        while parts := planned(plan, reached):
            assert parts[0][0] == reached.position
            assert all(hours[offset] == number for start, end, number in parts for offset in range(start, end))
            reached = Reached(position=parts[-1][1], hour=at(parts[-1][2]))
        assert reached.position == len(arrivals)
        # A driver that begins now does not know the hour of the last part.
        for position in range(1, len(arrivals)):
            assert planned(plan, Reached(position=position))[0][2] == hours[position]


def test_partitions_are_asked_for_together() -> None:
    log, asked = FakeLog.of("t", stamps(10, 11), stamps(10, 11), stamps(10.5, 11.5)), list[str]()
    log.interrupt = asked.append
    assert len(planner(log).plan({part: Reached(position=0) for part in range(3)}, {0: 2, 1: 2, 2: 2})) == 6
    assert asked == ["first_at_or_after"] * 3  # of the first record, of hour 11, of hour 12


def test_a_log_that_ends_before_the_position_is_another_one() -> None:
    with pytest.raises(LogChanged, match="t-0 ends at 1, and the stream has read up to 2"):
        planned(planner(FakeLog.of("t", stamps(10))), Reached(position=2))


def test_boundaries_are_those_of_the_windows_from_the_last_one_at_or_before_the_position_on() -> None:
    def window(number: int, start: int, end: int) -> FrozenHour:
        part = OffsetRange(topic="t", partition=0, start_offset=start, end_offset=end)
        return FrozenHour(interval=hour(number), ranges={0: part})

    frozen = [window(10, 0, 5), window(11, 5, 5), window(13, 7, 9)]
    assert reached_in(frozen, {0: 5, 1: 3}) == {
        0: Reached(position=5, boundaries=[(at(12), 5), (at(13), 7), (at(14), 9)]),
        1: Reached(position=3, boundaries=[(at(14), 0)]),
    }


def test_an_epoch_has_a_limited_number_of_parts() -> None:
    log = FakeLog.of("t", stamps(*range(10, 20)))
    plan = planner(log)
    limited_plan = EpochPlanner(pipeline=plan.pipeline, log=log, now=plan.now, offsets_max=100, parts_max=3)
    assert planned(limited_plan) == [(0, 1, 10), (1, 2, 11), (2, 3, 12)]
    assert Interval.hour(at(10)).start == plan.plan({0: Reached(position=0)}, {0: 1})[0].hour
    assert plan.plan({0: Reached(position=1)}, {0: 1}) == list[PlannedPart]()
