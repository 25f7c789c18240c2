"""A window is a range of offsets; each load counts and reports the hours its records are stamped with."""

from __future__ import annotations

from datetime import timedelta

import pytest
from logbus.loads import completeness
from logbus.loads.completeness import StampedHours, elsewhere_notes, missing_of_stamped, windows_holding
from logbus.model import Interval
from logbus.status.ledger_facts import read_ledger
from logbus.windows.migrations import create_ledger

from tests.support.ledgers import NOW, World, at, hour, stamps
from tests.support.loads import Loading, load_hours

MINUTE = 1 / 60


def with_a_fast_clock(world: World) -> World:
    """One server writes a line every minute; another, an hour fast, writes one every twenty minutes: what `ship` produces from a
    host that logs in UTC and one that logs in Berlin winter time without a zone, in order of arrival."""
    for number in range(3 * 60):
        world.log.append("t", *stamps(10 + number * MINUTE))
        if number % 20 == 19:
            world.log.append("t", *stamps(11 + number * MINUTE))
    world.register()
    load_hours(world, 10, 11, 12)
    return world


@pytest.fixture(scope="module")
def ahead(shared_world: World) -> World:
    return with_a_fast_clock(shared_world)


def hours(world: World, number: int) -> StampedHours:
    with world.ledger.engine.connect() as connection:
        found = completeness.stamped_hours(connection, world.ledger.window("p", at(number)))
    assert found is not None
    return found


def test_an_hour_whose_records_one_fast_clock_moved_is_named_with_the_window_that_holds_them(ahead: World) -> None:
    assert hours(ahead, 10).sentences() == ["stamped 2015-05-17T10:00:00Z: 20 here, 40 in window 2015-05-17T11:00:00Z"]
    assert hours(ahead, 11).sentences()[1] == "here, but stamped otherwise: 40 with 2015-05-17T10:00:00Z"


def test_every_record_is_counted_once_with_the_hour_of_its_stamp(ahead: World) -> None:
    windows = ahead.ledger.windows("p")
    held = [hours(ahead, window.interval.start.hour) for window in windows]
    for window, found in zip(windows, held, strict=True):
        assert window.counts is not None
        assert found.own + found.strangers + found.unstamped == window.counts.read
        assert (window.counts.late, window.counts.early) == (
            sum(one.count for one in found.others if one.hour < window.interval.start),
            sum(one.count for one in found.others if one.hour >= window.interval.end),
        )


def test_which_windows_hold_an_hour_is_asked_of_the_ledger(ahead: World) -> None:
    with ahead.ledger.engine.connect() as connection:
        for part in (hour(10), Interval(at(10.25), at(10.5))):
            assert windows_holding(connection, "p", part) == {at(10): 20, at(11): 40}


def test_the_exporter_counts_those_of_the_newest_windows(ahead: World) -> None:
    found = read_ledger(ahead.ledger.engine, timeout_seconds=5).pipelines["p"]
    assert (found.stamped, found.stamped_elsewhere, found.late) == (146, 80, 80)


def test_lag_says_which_pipelines_hours_are_not_whole(ahead: World) -> None:
    with ahead.ledger.engine.connect() as connection:
        (note,) = elsewhere_notes(connection, ["p", "other"])
        assert note.startswith("p: 80 of the 146 records in its newest windows are stamped with other hours than their window's")
        assert elsewhere_notes(connection, ["other"]) == []


def test_a_reload_counts_anew_and_not_on_top(world: World) -> None:
    ahead = with_a_fast_clock(world)
    before = hours(ahead, 11)
    load_hours(ahead, 11)
    assert hours(ahead, 11) == before


def test_a_window_that_is_not_loaded_has_no_hours(world: World) -> None:
    world.fill(10, 11)
    window = world.freeze(10)
    with world.ledger.engine.connect() as connection:
        assert completeness.stamped_hours(connection, window) is None


def test_records_without_a_stamp_are_counted_apart(world: World) -> None:
    world.log.append("t", *stamps(10), -1, -1, *stamps(10.5, 11))
    world.register()
    load_hours(world, 10)
    found = hours(world, 10)
    assert (found.own, found.unstamped, found.sentences()) == (2, 2, ["here, without a usable timestamp: 2"])


def test_where_windows_are_quarters_of_an_hour_so_are_the_stamps(world: World) -> None:
    world.log.append("t", *stamps(10, 10.3, 10.1, 10.6))
    quarter = timedelta(minutes=15)
    world.register(interval=quarter)
    for number in (0, 1):
        start = at(10) + number * quarter
        window = world.ledger.freeze_or_get("p", Interval(start, start + quarter), world.log, NOW)
        Loading(world=world, url=world.url, window=window).load()
    assert hours(world, 10).sentences() == ["stamped 2015-05-17T10:00:00Z: 1 here, 1 in window 2015-05-17T10:15:00Z"]


def test_an_event_time_hour_is_there_when_every_window_is_that_may_hold_its_records(world: World) -> None:
    """Hours 10, 11 and 12 are loaded; a late record or a fast clock may put a record of hour 11 into window 13."""
    ahead = with_a_fast_clock(world)
    engine = ahead.ledger.engine
    assert missing_of_stamped(engine, "p", hour(10), None) is None
    assert missing_of_stamped(engine, "p", hour(11), None) == hour(13)
    assert missing_of_stamped(engine, "p", hour(11), timedelta(0)) is None
    load_hours(ahead, 13)
    assert missing_of_stamped(engine, "p", hour(11), None) is None
    assert missing_of_stamped(engine, "p", hour(11), None, audited=True) == Interval(at(11), at(14))


def test_an_event_time_hour_of_a_pipeline_that_nobody_registered_is_waited_for(world: World) -> None:
    create_ledger(world.ledger.engine)
    assert missing_of_stamped(world.ledger.engine, "unheard_of", hour(3), None) == hour(3)


def test_a_stamp_further_ahead_than_the_pipeline_believes_begins_no_hour(world: World) -> None:
    """A record written at 10:30 by a clock 50 minutes fast ends hour 10 under the default limit, but not under five minutes."""
    world.fill(10, 10.25, 11 + 20 * MINUTE, 10.75, 11)
    world.register(name="careful", table="careful", settings={"max_ahead_minutes": 5})
    now = at(11) + timedelta(minutes=6)
    ends = [world.ledger.freeze_or_get(name, hour(10), world.log, now).ranges[0].end_offset for name in ("p", "careful")]
    assert ends == [2, 4]
