from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from logbus.errors import UserError
from logbus.windows.handover import Stage, begin_watch, note_announced, take, told_since, unannounced
from logbus.windows.migrations import create_ledger

from tests.support.ledgers import NOW, World, at, hour

LATENESS = timedelta(minutes=5)


def watch(world: World, stage: Stage, now: datetime = NOW, name: str = "w") -> None:
    begin_watch(world.ledger.engine, name, "p", stage, now)


def announce(world: World, now: datetime = NOW) -> list[datetime]:
    """One poll of the watcher, with everything it finds noted as announced."""
    starts = [interval.start for interval in unannounced(world.ledger.engine, "w", now)]
    if starts:
        note_announced(world.ledger.engine, "w", starts, now)
    return starts


def frozen(world: World, *numbers: int) -> None:
    world.fill(*(number + 0.5 for number in numbers), freeze=numbers)


def test_a_window_is_announced_once_when_it_is_loaded(world: World) -> None:
    frozen(world, 1, 2)
    watch(world, Stage.LOADED)
    assert announce(world) == []
    world.mark(2, loaded_attempt=1)
    assert announce(world) == [at(2)]
    world.mark(1, loaded_attempt=1)
    world.mark(2, loaded_attempt=2)
    assert announce(world) == [at(1)]


def test_what_was_there_before_the_watch_is_no_news(world: World) -> None:
    frozen(world, 1, 2)
    world.mark(1, loaded_attempt=1, audited_at=NOW)
    watch(world, Stage.AUDITED)
    world.mark(2, loaded_attempt=1, audited_at=NOW)
    assert announce(world) == [at(2)]


def test_what_is_not_noted_is_announced_again_after_a_restart(world: World) -> None:
    frozen(world, 1)
    watch(world, Stage.LOADED)
    world.mark(1, loaded_attempt=1)
    assert [part.start for part in unannounced(world.ledger.engine, "w", NOW)] == [at(1)]
    watch(world, Stage.LOADED, NOW + timedelta(minutes=3))
    assert announce(world) == [at(1)]
    watch(world, Stage.LOADED, NOW + timedelta(minutes=6))
    assert announce(world) == []


def test_hours_are_announced_as_the_clock_closes_them(world: World) -> None:
    world.register()
    watch(world, Stage.CLOSED, at(3.5))
    assert announce(world, at(4) + LATENESS - timedelta(seconds=1)) == []
    assert announce(world, at(4) + LATENESS) == [at(3)]
    assert announce(world, at(7) + LATENESS) == [at(4), at(5), at(6)]
    assert announce(world, at(7) + LATENESS) == []


def test_an_hour_that_ended_but_was_still_open_when_the_watch_began_is_announced(world: World) -> None:
    world.register()
    watch(world, Stage.CLOSED, at(4) + timedelta(minutes=2))
    assert announce(world, at(4) + LATENESS) == [at(3)]


def test_a_pipeline_may_be_watched_before_it_is_registered(world: World) -> None:
    create_ledger(world.ledger.engine)
    for stage in Stage:
        begin_watch(world.ledger.engine, f"w-{stage}", "p", stage, at(3))
        assert list(unannounced(world.ledger.engine, f"w-{stage}", at(9))) == []
    world.register()
    assert len(unannounced(world.ledger.engine, "w-closed", at(9))) == 6


def test_one_name_watches_one_thing(world: World) -> None:
    world.register()
    watch(world, Stage.LOADED)
    with pytest.raises(UserError, match="choose another name"):
        watch(world, Stage.AUDITED)


def test_a_window_belongs_to_the_first_run_that_takes_it(world: World) -> None:
    create_ledger(world.ledger.engine)
    engine, starts = world.ledger.engine, [at(1), at(2)]
    assert take(engine, "report", "p", starts, "run 1", NOW) == starts
    assert take(engine, "report", "p", [*starts, at(3)], "run 2", NOW) == [at(3)]
    assert take(engine, "report", "p", starts, "run 1", NOW) == starts
    assert take(engine, "another", "p", starts, "run 9", NOW) == starts
    assert take(engine, "report", "p", [], "run 3", NOW) == []


def test_what_was_told_since_an_instant_holds_what_is_not_noted_yet_but_nothing_known_before(world: World) -> None:
    frozen(world, 1, 2, 3, 4)
    world.mark(1, loaded_attempt=1)
    watch(world, Stage.LOADED)
    world.mark(2, loaded_attempt=1)
    announce(world, NOW + timedelta(minutes=1))
    world.mark(3, loaded_attempt=1)
    announce(world, NOW + timedelta(minutes=2))
    world.mark(4, loaded_attempt=1)
    engine = world.ledger.engine
    assert told_since(engine, "w", NOW, NOW) == [at(2), at(3), at(4)]
    assert told_since(engine, "w", NOW + timedelta(minutes=2), NOW) == [at(3), at(4)]
    assert told_since(engine, "w", NOW + timedelta(minutes=3), NOW) == [at(4)]


def test_many_runs_that_take_at_once_share_the_windows_out(world: World) -> None:
    create_ledger(world.ledger.engine)
    starts = [hour(number).start for number in range(20)]
    with ThreadPoolExecutor(4) as threads:
        runs = [f"run {number}" for number in range(4)]
        taken = list(threads.map(lambda run: take(world.ledger.engine, "c", "p", starts, run, NOW), runs))
    assert sorted(start for share in taken for start in share) == starts
