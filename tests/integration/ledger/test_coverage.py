from __future__ import annotations

from logbus.model import Interval
from logbus.windows.coverage import missing_span
from logbus.windows.migrations import create_ledger

from tests.support.ledgers import NOW, World, at, hour


def test_a_day_is_loaded_when_its_last_hour_is(world: World) -> None:
    world.fill(3.5, 4.5, 5.5, freeze=[3, 4, 5])
    span, engine = Interval(at(3), at(6)), world.ledger.engine
    world.mark(3, loaded_attempt=1)
    world.mark(5, loaded_attempt=1)
    assert missing_span(engine, "p", span) == hour(4)
    world.mark(4, loaded_attempt=2)
    assert missing_span(engine, "p", span) is None


def test_loaded_is_less_than_audited(world: World) -> None:
    world.fill(3.5, freeze=[3])
    world.mark(3, loaded_attempt=1)
    assert missing_span(world.ledger.engine, "p", hour(3), audited=True) == hour(3)
    world.mark(3, audited_at=NOW)
    assert missing_span(world.ledger.engine, "p", hour(3), audited=True) is None


def test_of_a_pipeline_that_nobody_registered_everything_is_missing(world: World) -> None:
    create_ledger(world.ledger.engine)
    assert missing_span(world.ledger.engine, "unheard_of", hour(3)) == hour(3)
