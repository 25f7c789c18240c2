from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from logbus.loads.ledger import FAILURES_BEFORE_ALONE
from logbus.model import instant_text
from logbus.windows.definition import definition_of
from logbus.windows.rows import HEARTBEAT_EXPIRY
from logbus.windows.schema import window
from sqlalchemy import update

from tests.support.ledgers import NOW, World, at

LATER = NOW + timedelta(minutes=1)


def begin(world: World, number: int) -> int:
    return world.ledger.begin_attempts("p", [at(number)], "r", 1, NOW)[0].number


def load(world: World, number: int) -> None:
    """Leaves the window as a commit does."""
    attempt = begin(world, number)
    with world.ledger.engine.begin() as connection:
        connection.execute(update(window).where(window.c.starts_at == at(number)).values(loaded_attempt=attempt))


def test_a_load_that_began_after_the_asking_may_stand_for_it(world: World) -> None:
    world.register()
    for number in (1, 2, 3):
        world.freeze(number)
    load(world, 1)
    starts = [at(1), at(2), at(3)]
    assert world.ledger.begun_since("p", starts, NOW - timedelta(seconds=1)) == {at(1)}
    assert world.ledger.begun_since("p", starts, NOW) == set()
    assert world.ledger.begun_since("other", starts, NOW - timedelta(seconds=1)) == set()


def test_a_load_by_another_definition_stands_for_nobody(world: World) -> None:
    mine = world.register()
    world.freeze(1)
    load(world, 1)
    before = NOW - timedelta(seconds=1)
    assert world.ledger.begun_since("p", [at(1)], before, definition_of(mine)) == {at(1)}
    assert world.ledger.begun_since("p", [at(1)], before, definition_of(replace(mine, parse="json"))) == set()


def test_an_attempt_under_way_stands_for_nothing(world: World) -> None:
    world.register()
    world.freeze(1)
    begin(world, 1)
    assert world.ledger.begun_since("p", [at(1)], NOW - timedelta(seconds=1)) == set()


def test_a_window_goes_alone_after_it_failed_twice_in_a_row(world: World) -> None:
    world.register()
    world.freeze(1)
    for _ in range(FAILURES_BEFORE_ALONE):
        assert world.ledger.failing("p", [at(1)]) == set()
        attempts = world.ledger.begin_attempts("p", [at(1)], "r", 1, NOW)
        world.ledger.fail_attempts(attempts, "boom", NOW)
    assert world.ledger.failing("p", [at(1)]) == {at(1)}
    begin(world, 1)
    assert world.ledger.failing("p", [at(1)]) == set()


def test_a_window_is_in_somebody_elses_hands_while_another_runs_attempt_at_it_is_alive(world: World) -> None:
    world.register()
    for number in (1, 2):
        world.freeze(number)
    starts = [at(1), at(2)]
    attempts = world.ledger.begin_attempts("p", starts, "another", 1, NOW)
    told = world.ledger.at_work_elsewhere("p", starts, "ours", NOW)
    assert told == {start: f"attempt 1 at {instant_text(start)} by run another, last heartbeat 0 s ago" for start in starts}
    assert world.ledger.at_work_elsewhere("p", starts, None, NOW) == told
    assert world.ledger.at_work_elsewhere("p", starts, "another", NOW) == {}
    assert world.ledger.at_work_elsewhere("p", starts, "ours", NOW + HEARTBEAT_EXPIRY) == {}
    world.ledger.fail_attempts(attempts[:1], "boom", NOW)
    assert world.ledger.at_work_elsewhere("p", starts, "ours", NOW).keys() == {at(2)}
