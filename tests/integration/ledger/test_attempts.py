"""Attempts at windows: how they ended, and which of them others wait for, adopt or leave alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import AttemptSuperseded
from logbus.loads.attempts import ENDED_WITHOUT_COMMIT, outcomes_of, why_not_loaded
from logbus.loads.ledger import FAILURES_BEFORE_ALONE
from logbus.model import Attempt, instant_text
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.ledgers import NOW, World, at

LATER = NOW + HEARTBEAT_EXPIRY + timedelta(seconds=1)


@pytest.fixture
def ours(world: World) -> list[Attempt]:
    """Attempts at hours 1 and 2."""
    world.fill(freeze=[1, 2])
    return world.begin(1, 2)


def commit(world: World, attempt: Attempt) -> None:
    """Leaves the window as a commit does."""
    world.mark(attempt.interval.start.hour, loaded_attempt=attempt.number)


def test_a_window_is_loaded_by_the_attempt_or_by_one_that_began_after_it(world: World, ours: list[Attempt]) -> None:
    commit(world, ours[0])
    first, second = outcomes_of(world.ledger.engine, ours, NOW)
    assert (first.is_loaded, first.is_loaded_by_newer, second.is_loaded) == (True, False, False)
    (newer,) = world.begin(1)
    assert outcomes_of(world.ledger.engine, [newer], NOW)[0].is_loaded is False
    commit(world, newer)
    (first, _) = outcomes_of(world.ledger.engine, ours, NOW)
    assert (first.is_loaded_by_newer, first.is_loaded) == (True, True)


def test_attempts_whose_program_is_over_are_ended_and_those_committed_stay(world: World, ours: list[Attempt]) -> None:
    commit(world, ours[0])
    outcomes = world.ledger.settle_attempts(ours, NOW)
    assert (outcomes[1].is_loaded, outcomes[1].error) == (False, ENDED_WITHOUT_COMMIT)
    missing = why_not_loaded(outcomes)
    assert str(missing) == (
        "not loaded, according to the ledger: 1 of 2 windows: 2015-05-17T02:00:00Z: attempt 1 is failed (the Spark application ended "
        "without an error and without committing this window)"
    )
    assert outcomes[0].is_loaded


def test_an_hour_in_somebody_elses_hands_is_told_from_one_that_somebody_gave_up(world: World, ours: list[Attempt]) -> None:
    world.begin(1, 2, run_id="other")
    assert isinstance(why_not_loaded(outcomes_of(world.ledger.engine, ours, NOW)), AttemptSuperseded)
    silent = why_not_loaded(outcomes_of(world.ledger.engine, ours, LATER))
    assert not isinstance(silent, AttemptSuperseded)
    assert "attempt 2 of run other took over from attempt 1 and is running, without a heartbeat" in str(silent)


def test_a_load_that_began_after_the_asking_may_stand_for_it(world: World) -> None:
    world.fill(freeze=[1, 2, 3])
    commit(world, *world.begin(1))
    starts = [at(1), at(2), at(3)]
    assert world.ledger.begun_since("p", starts, NOW - timedelta(seconds=1)) == {at(1)}
    assert world.ledger.begun_since("p", starts, NOW) == set()
    assert world.ledger.begun_since("other", starts, NOW - timedelta(seconds=1)) == set()


def test_a_load_by_another_definition_stands_for_nobody(world: World) -> None:
    mine = world.fill(freeze=[1])
    commit(world, *world.begin(1))
    before = NOW - timedelta(seconds=1)
    assert world.ledger.begun_since("p", [at(1)], before, mine) == {at(1)}
    assert world.ledger.begun_since("p", [at(1)], before, replace(mine, parse="json")) == set()


def test_an_attempt_under_way_stands_for_nothing(world: World) -> None:
    world.fill(freeze=[1])
    world.begin(1)
    assert world.ledger.begun_since("p", [at(1)], NOW - timedelta(seconds=1)) == set()


def test_a_window_goes_alone_after_it_failed_twice_in_a_row(world: World) -> None:
    world.fill(freeze=[1])
    for _ in range(FAILURES_BEFORE_ALONE):
        assert world.ledger.failing("p", [at(1)]) == set()
        world.ledger.fail_attempts(world.begin(1), "boom", NOW)
    assert world.ledger.failing("p", [at(1)]) == {at(1)}
    world.begin(1)
    assert world.ledger.failing("p", [at(1)]) == set()


def test_a_window_is_in_somebody_elses_hands_while_another_runs_attempt_at_it_is_alive(world: World) -> None:
    world.fill(freeze=[1, 2])
    starts = [at(1), at(2)]
    attempts = world.begin(1, 2, run_id="another")
    busy = world.ledger.at_work_elsewhere("p", starts, "ours", NOW)
    assert busy == {start: f"attempt 1 at {instant_text(start)} by run another, last heartbeat 0 s ago" for start in starts}
    assert world.ledger.at_work_elsewhere("p", starts, None, NOW) == busy
    assert world.ledger.at_work_elsewhere("p", starts, "another", NOW) == {}
    assert world.ledger.at_work_elsewhere("p", starts, "ours", NOW + HEARTBEAT_EXPIRY) == {}
    world.ledger.fail_attempts(attempts[:1], "boom", NOW)
    assert world.ledger.at_work_elsewhere("p", starts, "ours", NOW).keys() == {at(2)}
