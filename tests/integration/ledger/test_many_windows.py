"""What is asked about all windows of a pipeline at once, for more windows than a statement has parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import UserError, WindowUnknown
from logbus.ledger import adoption, announcements, testimony
from logbus.ledger.attempts import beyond_retry, lock_windows
from logbus.ledger.migrations import create_ledger
from logbus.ledger.standing import standings
from logbus.model import Interval
from logbus.retention.store import refuse_changed

from tests.support.ledgers import NOW, World, at

MINUTE = timedelta(minutes=1)
STARTS = [at(0) + number * MINUTE for number in range(66_000)]


def test_the_ledger_finds_the_few_that_it_has(world: World) -> None:
    world.register()
    window = world.freeze(1)
    engine, many = world.ledger.engine, [replace(window, interval=Interval(start, start + MINUTE)) for start in STARTS]
    assert adoption.begun_since(engine, "p", STARTS, NOW) == set()
    assert adoption.failing(engine, "p", STARTS) == set()
    assert adoption.at_work_elsewhere(engine, "p", STARTS, None, NOW) == {}
    assert testimony.call(engine, many).needed_by == {}
    with engine.begin() as connection, pytest.raises(UserError, match="a window changed"):
        refuse_changed(connection, [replace(window, id=window.id + number) for number in range(len(STARTS))])
    with engine.begin() as connection, pytest.raises(WindowUnknown, match="freeze it first"):
        lock_windows(connection, "p", STARTS)
    (attempt,) = world.ledger.begin_attempts("p", [window.interval.start], "run", 1, NOW)
    attempts = [replace(attempt, number=attempt.number + number) for number in range(len(STARTS))]
    world.ledger.heartbeat(attempts, NOW)
    assert beyond_retry(engine, attempts) is None
    assert [one.is_loaded for one in standings(engine, [attempt] * len(STARTS), NOW)] == [False] * len(STARTS)


def test_a_consumer_takes_them_all(world: World) -> None:
    create_ledger(world.ledger.engine)
    assert announcements.take(world.ledger.engine, "consumer", "p", STARTS, "run", NOW) == STARTS
