"""The earlier hours that a scheduled run loads besides its own, with a real ledger. It is 2026, the hours are in 2015."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from logbus.loads.ledger import FAILURES_BEFORE_ALONE
from logbus.model import Interval, TaskKey
from logbus.operators.window_operator import Beside
from logbus.task_context import run_interval
from logbus.timetable import WindowTimetable
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.airflow_context import run_context
from tests.support.ledgers import NOW, World, at
from tests.support.loads import Loading, load_hours

OWN = 16
YEARS = 24 * 365


@pytest.fixture
def away(world: World) -> World:
    """Hours 10 to 16 hold records. 10 and 11 are loaded; then the scheduler was down, and it is back for hour 16."""
    world.fill(*(hour + 0.5 for hour in range(10, OWN + 1)), settings={"max_ahead_minutes": 0})
    load_hours(world, 10, 11)
    world.freeze(OWN)
    return world


def missing(
    world: World, limit: int = 84, *, now: datetime = NOW, taken: tuple[datetime, ...] = (), **context: Any
) -> list[datetime]:
    run = run_context(at(OWN), at(OWN + 1), **{"run_type": "scheduled", **context})
    return beside(world, run, now).missing_before(run, limit, set(taken))


def beside(world: World, run: dict[str, Any], now: datetime = NOW) -> Beside:
    return Beside(ledger=world.ledger, log=world.log, pipeline_name="p", own=run_interval(run), now=now)


def test_hours_without_a_run_are_taken_by_the_next_one(away: World) -> None:
    assert missing(away) == [at(number) for number in (12, 13, 14, 15)]
    assert [window.interval.start.hour for window in away.ledger.windows("p")] == list(range(10, OWN + 1))  # all frozen


def test_the_oldest_come_first_where_there_are_more_than_an_application_takes(away: World) -> None:
    assert missing(away, 2) == [at(12), at(13)]
    assert missing(away, 0) == []


def test_hours_that_runs_wait_for_are_theirs(away: World) -> None:
    assert missing(away, taken=(at(13), at(14))) == [at(12), at(15)]


def test_a_frozen_hour_whose_run_failed_is_taken_until_it_has_failed_twice(away: World) -> None:
    away.freeze(13)
    for _ in range(FAILURES_BEFORE_ALONE):
        assert at(13) in missing(away)
        away.ledger.fail_attempts(away.begin(13), "boom", NOW)
    assert missing(away) == [at(12), at(14), at(15)]


def test_an_hour_that_somebody_is_loading_is_left_to_him_while_he_gives_signs_of_life(away: World) -> None:
    away.freeze(13)
    away.begin(13)
    assert missing(away) == [at(12), at(14), at(15)]
    assert at(13) in missing(away, now=NOW + HEARTBEAT_EXPIRY + timedelta(seconds=1))


def test_hours_that_retention_took_are_left_to_those_who_may_give_them_up(away: World) -> None:
    away.log.delete_records("t", before_offset=4)  # 12, 13, and possibly some records of 14
    assert missing(away) == [at(15)]


def test_a_run_that_is_asked_for_takes_its_own_hour(away: World) -> None:
    assert missing(away, run_type="manual") == missing(away, run_type="backfill") == []


def test_a_quiet_night_is_filled_and_ten_years_are_not(world: World) -> None:
    world.fill(9.5, OWN + 0.5)
    Loading.of(world, 9).load()
    world.freeze(OWN)
    assert missing(world, limit=5) == []
    assert missing(world) == []
    assert all(world.ledger.window("p", at(number)).is_proven_empty for number in range(10, OWN))
    own = at(10 * YEARS)
    late = run_context(own, own + timedelta(hours=1), run_type="scheduled")
    assert beside(world, late).missing_before(late, 84, set()) == [at(OWN)]


def test_hours_without_a_run_are_frozen_with_the_boundaries_of_the_schedule(world: World, warehouse_url: str) -> None:
    """Full hours in Kolkata are half hours in UTC. A run for one of them that is cleared later needs its own boundaries."""
    world.fill(9.75, 10.75, 11.75, 12.75, 13.75)
    half = timedelta(minutes=30)
    first = world.ledger.freeze_or_get("p", Interval(at(9) + half, at(10) + half), world.log, NOW)
    Loading(world, warehouse_url, first).load()
    run = run_context(at(13) + half, at(14) + half, run_type="scheduled")
    run["dag"].timetable = WindowTimetable("0 * * * *", "Asia/Kolkata")
    assert beside(world, run).missing_before(run, 84, set()) == [
        at(11) + half
    ]  # others are not whole in the grid of the ledger's gaps
    assert [str(window.interval) for window in world.ledger.windows("p")][1:] == ["[2015-05-17T11:30:00Z, 2015-05-17T12:30:00Z)"]


def test_what_a_run_has_loaded_and_nobody_audited_is_remembered_for_its_audit(away: World) -> None:
    """A retry fills nothing new, and the audit still takes what the previous try has filled."""
    task = TaskKey(dag_id="access_log", task_id="load")
    for number in (12, 13):
        loading = Loading.of(away, number)
        (loading.attempt,) = away.begin(number, run_id="scheduled__16", task=task)
        loading.create().run_task(7).commit()
    assert away.ledger.unaudited_of_run("p", "access_log", "scheduled__16") == {at(12), at(13)}
    assert away.audit(12).ok
    assert away.ledger.unaudited_of_run("p", "access_log", "scheduled__16") == {at(13)}
    assert away.ledger.unaudited_of_run("p", "access_log", "another") == set()
