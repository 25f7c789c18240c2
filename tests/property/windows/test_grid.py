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


def changes(zone: str) -> list[tuple[Grid, datetime]]:
    """The days of three years on which the zone's clocks change, with its grid."""
    noons = [datetime(2009, 1, 1, 12, tzinfo=UTC) + number * DAY for number in range(3 * 366)]
    offsets = [noon.astimezone(ZoneInfo(zone)).utcoffset() for noon in noons]
    return [
        (Grid(DAY, zone), noon) for noon, before, after in zip(noons[1:], offsets, offsets[1:], strict=False) if before != after
    ]


PLACES = st.one_of(
    st.tuples(GRIDS, INSTANTS),
    st.builds(
        lambda change, hours: (change[0], change[1] + hours * HOUR),
        st.sampled_from([change for zone in ZONES for change in changes(zone)]),
        st.integers(-40, 40),
    ),
)
ALWAYS = TimeRestriction(earliest=None, latest=None, catchup=True)


@given(place=PLACES, count=st.integers(1, 400))
def test_windows_tile_the_time_line(place: tuple[Grid, datetime], count: int) -> None:
    grid, instant = place
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
    assert grid.whole(start, end) == Interval(start, end)
    assert all(grid.has(window) for window in windows)


@given(place=PLACES)
def test_a_day_begins_where_its_zone_says(place: tuple[Grid, datetime]) -> None:
    grid = Grid(DAY, place[0].timezone)
    start, zone = grid.floor(place[1]), ZoneInfo(grid.timezone)
    begins, before = start.astimezone(zone), (start - timedelta(microseconds=1)).astimezone(zone)
    assert begins.time() == time() or before.date() < begins.date(), "midnight, or what clocks show in its place"
    assert 22 * HOUR <= grid.after(start) - start <= 26 * HOUR


@given(place=PLACES, lateness=st.sampled_from([timedelta(0), timedelta(minutes=5), 30 * HOUR]))
def test_the_timetable_makes_a_run_for_each_window_as_airflows_own_would(
    place: tuple[Grid, datetime], lateness: timedelta
) -> None:
    grid, instant = place
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
