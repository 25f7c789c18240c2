"""The two nights a year on which a zone's clock jumps: hours are UTC hours, whatever zone a DAG's schedule is in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from airflow.sdk import timezone
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from logbus.model import Interval, milliseconds
from logbus.task_context import run_interval

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
