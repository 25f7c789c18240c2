from __future__ import annotations

from logbus.loads.completeness import missing_span
from logbus.model import Interval
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


def test_a_table_is_complete_until_the_first_window_that_is_not_audited_or_not_frozen(world: World) -> None:
    world.fill(3.5, 4.5, 5.5, 7.5)
    query = "select complete_until from logbus.complete_until where table_name = 't' and topic = 't'"
    assert world.one(query) is None
    for number, proven_until in ((4, None), (3, 5), (7, 5), (5, 6), (6, 8)):
        world.freeze(number)
        world.mark(number, audited_at=None)
        unproven_until = world.one(query)
        assert unproven_until is None or unproven_until <= at(number)
        world.mark(number, audited_at=NOW)
        assert world.one(query) == (None if proven_until is None else at(proven_until))
    assert missing_span(world.ledger.engine, "p", Interval(at(3), at(8)), audited=True) is None


def test_of_a_pipeline_that_nobody_registered_everything_is_missing(world: World) -> None:
    create_ledger(world.ledger.engine)
    assert missing_span(world.ledger.engine, "unheard_of", hour(3)) == hour(3)
