"""Lag over a real ledger: the same numbers as over a chain in memory. It is 16:30."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from logbus.windows.lag import Lag, lag_of

from tests.support.ledgers import World, at, stamps
from tests.support.loads import Loading

NOW_OF_DAY = at(16.5)


@pytest.fixture
def filled(world: World, warehouse_url: str) -> World:
    """Two records in each of the hours 10 to 13; 10 and 11 are loaded."""
    for hour in (10, 11, 12, 13):
        world.log.append("t", *stamps(hour + 0.1, hour + 0.5))
    world.register()
    for hour in (10, 11):
        Loading(world, warehouse_url, world.freeze(hour)).load()
    return world


def lag(world: World, now: datetime = NOW_OF_DAY) -> Lag:
    return lag_of(world.ledger.engine, world.log, "p", now)


def test_closed_hours_that_are_not_loaded_count_frozen_or_not(filled: World) -> None:
    before = lag(filled)
    assert (before.hours_behind, before.oldest_hour, before.records, before.records_open) == (2, at(12), 4, 0)
    assert before.oldest_record_at == at(12.1)
    assert before.age(NOW_OF_DAY) == timedelta(hours=4.4)
    filled.freeze(12)
    assert lag(filled).summary(NOW_OF_DAY) == before.summary(NOW_OF_DAY)


def test_bytes_are_counted_only_by_reading(filled: World) -> None:
    read: list[tuple[str, int, int, int]] = []

    def measure(topic: str, partition: int, start: int, end: int) -> int:
        read.append((topic, partition, start, end))
        return 10 * (end - start)

    assert lag(filled).bytes_behind is None
    assert lag_of(filled.ledger.engine, filled.log, "p", NOW_OF_DAY, measure).bytes_behind == 40
    assert read == [("t", 0, 4, 8)]
