"""Windows tile the time line, whatever their length and zone, and are the intervals of the timetable and of Airflow's own."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pendulum
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from hypothesis import given
from hypothesis import strategies as st
from logbus.model import DAY, HOUR, Grid, Interval, Pipeline, milliseconds
from logbus.timetable import cron_of, of_pipeline
from logbus.windows.boundaries import take_snapshot
from logbus.windows.missing import find_gaps

from tests.support.fake_log import FakeLog
from tests.support.retention import chain

# Midnights that are skipped (Cairo, Santiago, Beirut) or shown twice (Havana, the Azores), half hours, a day left out (Apia).
ZONES = (
    *("Europe/Berlin", "America/New_York", "Africa/Cairo", "America/Santiago", "Asia/Beirut", "America/Havana"),
    *("Atlantic/Azores", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia", "Pacific/Kiritimati"),
)
LENGTHS = [timedelta(minutes=number) for number in (1, 5, 15, 20, 60, 120, 360, 720, 1440)]
GRIDS = st.one_of(st.builds(Grid, st.sampled_from(LENGTHS)), st.builds(lambda zone: Grid(DAY, zone), st.sampled_from(ZONES)))
INSTANTS = st.datetimes(datetime(1995, 2, 1), datetime(2037, 1, 1), timezones=st.just(UTC))
ALWAYS = TimeRestriction(earliest=None, latest=None, catchup=True)


@given(grid=GRIDS, instant=INSTANTS, count=st.integers(1, 400))
def test_windows_tile_the_time_line(grid: Grid, instant: datetime, count: int) -> None:
    start = grid.floor(instant)
    following = grid.after(start)
    assert start <= instant < following
    assert (grid.floor(start), grid.ceiling(start)) == (start, start)
    assert grid.floor(following - timedelta(microseconds=1)) == start
    assert grid.ceiling(start + timedelta(microseconds=1)) == following == grid.floor(following)
    assert grid.after(following, -1) == start
    end = grid.after(start, count)
    windows = list(grid.windows(start, end))
    assert all(before.end == after.start for before, after in pairwise(windows))
    assert (len(windows), windows[0].start, windows[-1].end) == (count, start, end)
    assert grid.count(Interval(start, end)) == count
    assert grid.after(end, -count) == start
    assert grid.whole(start - timedelta(1), end + timedelta(1)).end >= end  # type: ignore[union-attr]


@given(zone=st.sampled_from(ZONES), instant=INSTANTS)
def test_a_day_begins_where_its_zone_says(zone: str, instant: datetime) -> None:
    start = Grid(DAY, zone).floor(instant)
    begins = start.astimezone(ZoneInfo(zone))
    before = (start - timedelta(microseconds=1)).astimezone(ZoneInfo(zone))
    assert begins.time() == time() or before.date() < begins.date(), "midnight, or what clocks show in its place"
    assert Grid(DAY, zone).after(start) - start >= 22 * HOUR


@given(grid=GRIDS, instant=INSTANTS, lateness=st.sampled_from([timedelta(0), timedelta(minutes=5), 30 * HOUR]))
def test_the_timetable_makes_a_run_for_each_window_as_airflows_own_would(
    grid: Grid, instant: datetime, lateness: timedelta
) -> None:
    pipeline = Pipeline(
        name="p", topic="t", table="t", parse="raw", interval=grid.length, timezone=grid.timezone, lateness=lateness
    )
    timetable, plain = of_pipeline(pipeline), CronDataIntervalTimetable(cron_of(grid), grid.timezone)
    window = grid.window(grid.floor(instant))
    last = DataInterval(pendulum.instance(grid.after(window.start, -1)), pendulum.instance(window.start))
    for made in (timetable, plain):
        found = made.next_dagrun_info(last_automated_data_interval=last, restriction=ALWAYS)
        assert found is not None
        assert (found.data_interval.start, found.data_interval.end) == (window.start, window.end)
    info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=ALWAYS)
    assert info is not None
    assert info.run_after == window.end + lateness
    for asked in (window.end, window.end + lateness + timedelta(seconds=1)):
        manual = timetable.infer_manual_data_interval(run_after=pendulum.instance(asked))
        assert (manual.start, manual.end) == (window.start, window.end)


@given(
    grid=st.sampled_from([Grid(DAY, "Europe/Berlin"), Grid(DAY, "Africa/Cairo"), Grid(timedelta(minutes=15)), Grid(6 * HOUR)]),
    begin=st.sampled_from([datetime(2025, 3, 20, 5, tzinfo=UTC), datetime(2025, 10, 20, 5, tzinfo=UTC)]),
    ahead=st.lists(st.integers(0, 15 * 24 * 60), min_size=1, max_size=6),
)
def test_what_is_missing_are_the_windows_of_the_grid_from_the_first_record_to_the_last(
    grid: Grid, begin: datetime, ahead: list[int]
) -> None:
    records = [begin + timedelta(minutes=minutes) for minutes in sorted(ahead)]
    log = FakeLog.of("t", [milliseconds(record) for record in records])
    pipeline = Pipeline(name="p", topic="t", table="t", parse="raw", interval=grid.length, timezone=grid.timezone)
    empty_chain = chain([], grid=grid)
    snapshot = take_snapshot(log, pipeline, {0: 0}, records[-1] + 3 * DAY)
    gaps = find_gaps(log, pipeline, empty_chain, snapshot, questions_max=None)
    found = {part: gap.is_empty for gap in gaps for part in gap.parts(grid)}
    starts = {grid.floor(record) for record in records}
    windows = grid.windows(grid.floor(records[0]), grid.after(grid.floor(records[-1])))
    assert found == {window: window.start not in starts for window in windows}
    assert sum(gap.count for gap in gaps) == len(found)
