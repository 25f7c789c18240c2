from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from logbus.loads.ledger import FAILURES_BEFORE_ALONE
from logbus.model import instant_text
from logbus.windows.definition import definition_of
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.ledgers import NOW, World, at


def load(world: World, number: int) -> None:
    """Leaves the window as a commit does."""
    world.mark(number, loaded_attempt=world.begin(number)[0].number)


def test_a_load_that_began_after_the_asking_may_stand_for_it(world: World) -> None:
    world.fill(freeze=[1, 2, 3])
    load(world, 1)
    starts = [at(1), at(2), at(3)]
    assert world.ledger.begun_since("p", starts, NOW - timedelta(seconds=1)) == {at(1)}
    assert world.ledger.begun_since("p", starts, NOW) == set()
    assert world.ledger.begun_since("other", starts, NOW - timedelta(seconds=1)) == set()


def test_a_load_by_another_definition_stands_for_nobody(world: World) -> None:
    mine = world.fill(freeze=[1])
    load(world, 1)
    before = NOW - timedelta(seconds=1)
    assert world.ledger.begun_since("p", [at(1)], before, definition_of(mine)) == {at(1)}
    assert world.ledger.begun_since("p", [at(1)], before, definition_of(replace(mine, parse="json"))) == set()


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
