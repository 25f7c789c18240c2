"""The two nights a year on which a zone's clock jumps: hours are UTC hours, whatever zone a DAG's schedule is in; days have 23 or 25."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from airflow.sdk import timezone
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from logbus.errors import PipelineConflict
from logbus.loads.audit import audit_window
from logbus.loads.completeness import StampedHours, stamped_hours
from logbus.loads.sinks import sink_for
from logbus.model import DAY, HOUR, FrozenWindow, Grid, Interval, milliseconds
from logbus.task_context import run_interval
from logbus.windows import catch_up
from sqlalchemy import Engine

from tests.support.airflow_context import run_context
from tests.support.ledgers import NOW, World
from tests.support.loads import Loading

NIGHTS = {
    "the hour that comes twice": datetime(2015, 10, 24, 22, tzinfo=UTC),
    "the hour that is left out": datetime(2015, 3, 28, 22, tzinfo=UTC),
}
HOURS = 6


def scheduled(start: datetime, zone: str) -> Iterator[Interval]:
    """The windows of an hourly DAG's runs from `start` on, as Airflow itself schedules them."""
    timetable = CronDataIntervalTimetable("0 * * * *", timezone=zone)
    restriction = TimeRestriction(earliest=timezone.coerce_datetime(start), latest=None, catchup=True)
    last: DataInterval | None = None
    while True:
        info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        assert info is not None
        last = info.data_interval
        assert last is not None
        yield run_interval(run_context(last.start, last.end))


@pytest.mark.parametrize("night", NIGHTS)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata"])
def test_every_hour_of_the_night_is_loaded_once_in_any_zone(world: World, warehouse_url: str, night: str, zone: str) -> None:
    start = NIGHTS[night]
    minutes = [start + timedelta(minutes=10 * number) for number in range(6 * HOURS)]
    world.log.append("t", *map(milliseconds, minutes))
    world.register()
    windows = scheduled(start, zone)
    intervals = [next(windows)]
    while intervals[-1].end < start + timedelta(hours=HOURS):
        intervals.append(next(windows))
    assert all(before.end == after.start for before, after in pairwise(intervals)), intervals
    counts = [
        Loading(world=world, url=warehouse_url, window=world.ledger.freeze_or_get("p", interval, world.log, NOW)).load().read
        for interval in intervals
    ]
    expected = [sum(interval.start <= minute < interval.end for minute in minutes) for interval in intervals]
    assert counts == expected
    assert sum(counts) == sum(minute >= intervals[0].start for minute in minutes)


@pytest.mark.parametrize(("night", "long"), [("the hour that comes twice", 25), ("the hour that is left out", 23)])
def test_days_of_a_zone_are_caught_up_loaded_and_audited_with_the_hours_that_they_have(
    world: World, warehouse_url: str, night: str, long: int
) -> None:
    """Records on the day of the change and six days later; the days in between are proven empty in one go."""
    start = Grid(DAY, "Europe/Berlin").ceiling(NIGHTS[night])
    records = [start + timedelta(minutes=20 * number) for number in range(3 * long)] + [start + timedelta(days=6, hours=12)]
    world.log.append("t", *map(milliseconds, records))
    pipeline = world.register(interval=DAY, timezone="Europe/Berlin", lateness=timedelta(minutes=5))
    engine = world.ledger.engine
    plan = world.ledger.plan_load("p", world.log, NOW)
    windows = catch_up.freeze_plan(engine, plan, world.log, NOW)
    assert [window.interval for window in windows] == list(pipeline.grid.windows(start, windows[-1].interval.end))
    assert [(window.interval.end - window.interval.start) // HOUR for window in windows] == [long, *[24] * 6]
    for window in (windows[0], windows[-1]):
        Loading(world=world, url=warehouse_url, window=window).load()
        report = audit_window(engine, world.log, "p", window.interval.start, NOW, sink_for)
        assert (report.verdict, report.window.record_count) == ("exact", 3 * long if window is windows[0] else 1)
        hours = stamped(engine, window)
        assert (hours.own, hours.strangers, hours.elsewhere) == (window.record_count, 0, 0)
    assert world.ledger.gaps("p", world.log, NOW) == ()
    assert world.rows("select count(*), count(distinct _window_start) from t") == [(3 * long + 1, 2)]
    with pytest.raises(
        PipelineConflict, match="every: 1d against 1h; timezone: Europe/Berlin against UTC|timezone: Europe/Berlin"
    ):
        world.register()


def stamped(engine: Engine, window: FrozenWindow) -> StampedHours:
    with engine.connect() as connection:
        found = stamped_hours(connection, window)
    assert found is not None
    return found
