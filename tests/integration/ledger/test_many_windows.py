"""What is asked about all windows of a pipeline at once, for more windows than a statement has parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import UserError, WindowUnknown
from logbus.loads.attempts import outcomes_of
from logbus.model import Interval
from logbus.status.retention_run import validate_unchanged
from logbus.windows import handover, log_changes
from logbus.windows.migrations import create_ledger
from logbus.windows.rows import lock_windows

from tests.support.ledgers import NOW, World, at

MINUTE = timedelta(minutes=1)
STARTS = [at(0) + number * MINUTE for number in range(66_000)]


def test_the_ledger_finds_the_few_that_it_has(world: World) -> None:
    world.register()
    window = world.freeze(1)
    engine, many = world.ledger.engine, [replace(window, interval=Interval(start, start + MINUTE)) for start in STARTS]
    assert world.ledger.begun_since("p", STARTS, NOW) == set()
    assert world.ledger.failing("p", STARTS) == set()
    assert world.ledger.at_work_elsewhere("p", STARTS, None, NOW) == {}
    assert log_changes.witnesses_of(engine, many).needed_by == {}
    with engine.begin() as connection, pytest.raises(UserError, match="a window changed"):
        validate_unchanged(connection, [replace(window, id=window.id + number) for number in range(len(STARTS))])
    with engine.begin() as connection, pytest.raises(WindowUnknown, match="freeze it first"):
        lock_windows(connection, "p", STARTS)
    (attempt,) = world.ledger.begin_attempts("p", [window.interval.start], "run", 1, NOW)
    attempts = [replace(attempt, number=attempt.number + number) for number in range(len(STARTS))]
    world.ledger.heartbeat(attempts, NOW)
    assert world.ledger.beyond_retry(attempts) is None
    assert [one.is_loaded for one in outcomes_of(engine, [attempt] * len(STARTS), NOW)] == [False] * len(STARTS)


def test_a_consumer_takes_them_all(world: World) -> None:
    create_ledger(world.ledger.engine)
    assert handover.take(world.ledger.engine, "consumer", "p", STARTS, "run", NOW) == STARTS
