"""The lag of many pipelines read at once equals the lag of each read alone. It is 16:30."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from logbus.errors import BrokerUnavailable
from logbus.model import Pipeline
from logbus.status.fleet import PipelineReading, read_fleet
from logbus.status.lag import lag_of
from logbus.status.ledger_facts import newest_ends

from tests.support.fake_batches import FakeBatches
from tests.support.ledgers import NOW, World, at, hour, stamps

NOW_OF_DAY = at(16.5)
LATENESS = timedelta(minutes=5)
NAMES = ("ahead", "behind", "empty", "gap", "whole")


@pytest.fixture
def fleet(world: World) -> World:
    """Five pipelines in different states, with two partitions each."""
    for name in NAMES:
        numbers = () if name == "empty" else (8, 9, 10, 12, 13, 14)
        each = [stamps(*(number + part for number in numbers for part in parts)) for parts in ((0.1, 0.6), (0.2,))]
        world.log.fill(name, *each)
        starts_at = at(7) if name == "ahead" else None
        pipeline = Pipeline(name=name, topic=name, table=name, parse="lines", lateness=LATENESS, starts_at=starts_at)
        world.ledger.register(pipeline, world.log, NOW_OF_DAY)
    frozen = {"ahead": range(8, 16), "behind": (8, 9), "empty": (10,), "gap": (9, 12, 13), "whole": ()}
    for name, numbers in frozen.items():
        for number in numbers:
            world.ledger.freeze_or_get(name, hour(number), world.log, NOW_OF_DAY)
    return world


def load(world: World, chance: random.Random, share: float) -> None:
    """Marks a random share of the windows as loaded, and the others as not loaded."""
    for (number,) in world.rows("select id from logbus.window order by id"):
        loaded = 1 if chance.random() < share else "null"
        world.execute(f"update logbus.window set loaded_attempt = {loaded} where id = {number}")


def read(world: World, batches: FakeBatches | None = None) -> dict[str, PipelineReading]:
    readings = read_fleet(world.ledger.engine, batches or FakeBatches(world.log), NOW_OF_DAY)
    return {reading.pipeline.name: reading for reading in readings}


def assert_same_as_alone(world: World) -> None:
    together = read(world)
    assert sorted(together) == sorted(NAMES)
    for name, one in together.items():
        assert one.lag == lag_of(world.ledger.engine, world.log, name, NOW_OF_DAY), name


def test_every_figure_is_that_of_the_pipeline_alone(fleet: World) -> None:
    chance = random.Random(7)
    for share in (0.0, 0.4, 0.8, 1.0):
        load(fleet, chance, share)
        assert_same_as_alone(fleet)


def test_what_is_left_out_of_a_chain_counts_as_loaded(fleet: World) -> None:
    """A pipeline with a start: its hours are counted from there, whichever of its windows were read."""
    fleet.execute("update logbus.window set loaded_attempt = 1 where pipeline = 'ahead' and starts_at < '2015-05-17 14:00+00'")
    one = read(fleet)["ahead"]
    assert [window.interval.start for window in one.chain.windows] == [at(14), at(15)]
    assert (one.lag.hours_behind, one.lag.hours_empty, one.lag.oldest_hour) == (1, 1, at(14))
    assert one.lag.gaps[0].interval == hour(7)  # it was never frozen
    assert_same_as_alone(fleet)


def test_records_that_are_gone_are_counted_as_alone(fleet: World) -> None:
    for name in NAMES[:2]:
        fleet.log.delete_records(name, 3)
    assert_same_as_alone(fleet)
    assert read(fleet)["behind"].lag.records_lost == 3


def test_rounds_of_questions_do_not_grow_with_the_pipelines(fleet: World) -> None:
    few, many = FakeBatches(fleet.log), FakeBatches(fleet.log)
    read(fleet, few)
    for number in range(30):
        twin = Pipeline(name=f"twin{number}", topic="behind", table=f"twin{number}", parse="lines")
        fleet.ledger.register(twin, fleet.log, NOW)
    read(fleet, many)
    assert many.rounds == few.rounds


def test_a_topic_that_is_gone_is_its_own_problem(fleet: World) -> None:
    del fleet.log.topics["behind"]
    found = read(fleet)
    assert "is gone" in str(found["behind"].lag.problem)
    assert found["gap"].lag.problem is None


def test_a_topic_made_again_is_told(fleet: World) -> None:
    fleet.log.create("behind", 2)
    assert "recreated" in str(read(fleet)["behind"].lag.problem)
    assert_same_as_alone(fleet)


def test_a_stamp_from_the_future_is_read_by_nobody_here(fleet: World) -> None:
    fleet.log.append("whole", *stamps(24 * 365 * 80), partition=0)
    found = read(fleet)
    assert "is in the future" in str(found["whole"].lag.problem)
    assert found["gap"].lag.problem is None


def test_a_broker_that_is_down_is_one_error(fleet: World) -> None:
    class Down(FakeBatches):
        def topic_names(self) -> list[str]:
            raise BrokerUnavailable("no answer")

    with pytest.raises(BrokerUnavailable):
        read(fleet, Down(fleet.log))


def test_what_is_newest_to_look_at_is_the_last_window_that_holds_records(fleet: World) -> None:
    """A sample was loaded once, and a DAG keeps loading empty hours: users look for the sample."""
    fleet.execute("update logbus.window set loaded_attempt = 1, read_count = 4 where pipeline = 'gap'")
    fleet.execute("update logbus.window set read_count = 0 where pipeline = 'gap' and starts_at = '2015-05-17 13:00+00'")
    with fleet.ledger.engine.begin() as connection:
        ends = newest_ends(connection)
    assert (ends["gap"], ends["behind"]) == (hour(12).end, hour(9).end)
