"""Hours frozen together are the same as hours frozen one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logbus.errors import LogbusError, LogChanged, RecordsLost, TransactionOpen
from logbus.model import Interval
from logbus.windows import freezing, schema
from logbus.windows.catch_up import WINDOWS_TOGETHER, runs
from sqlalchemy import select

from tests.support.examples import examples
from tests.support.fake_log import NO_TIMESTAMP
from tests.support.ledgers import NOW, World, at, hour, intervals_of, stamps

PARTITIONS = 2
IN_2099 = 84 * 24 * 365.0
SOON = at(15)
_names = itertools.count(1)

places = st.floats(8, 14, exclude_max=True)
strange = st.sampled_from([None, NO_TIMESTAMP, *stamps(IN_2099)])  # a hole, a record without a timestamp, one from the future
parts = st.integers(0, PARTITIONS - 1)
appends = st.tuples(st.just("append"), parts, st.lists(places.map(lambda one: stamps(one)[0]) | strange, min_size=1, max_size=6))
deletions = st.tuples(st.just("delete"), parts, st.integers(1, 3))
freezes = st.tuples(st.just("freeze"), st.integers(8, 13), st.none())


def chain(world: World, name: str) -> list[tuple[Any, ...]]:
    """The windows with their ranges, and the boundaries with their witnesses."""
    row_of = schema.boundary
    columns = [column for column in row_of.columns if column.name not in ("pipeline", "frozen_at")]
    with world.ledger.engine.connect() as connection:
        kept = connection.execute(select(*columns).where(row_of.c.pipeline == name).order_by(row_of.c.partition, row_of.c.at))
        found = [tuple(row) for row in kept]
        windows = freezing.windows_in(connection, name, at(0), at(IN_2099))
    return [*found, *((window.interval, window.ranges, window.head_unknown) for window in windows)]


def freeze_all(world: World, name: str, *, together: bool) -> list[Any]:
    """The chain, and the error that ended the freeze, if any."""
    refused: type[LogbusError] | None = None
    try:
        if together:
            plan = world.ledger.plan_load(name, world.log, SOON, since=at(8), until=at(14))
            world.ledger.freeze_plan(plan, world.log, SOON)
        else:
            for interval in intervals_of(world.ledger.plan_load(name, world.log, SOON, since=at(8), until=at(14))):
                world.ledger.freeze_or_get(name, interval, world.log, SOON)
    except LogbusError as error:
        refused = type(error)
    return [*chain(world, name), refused]


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(appends | deletions | freezes, max_size=10))
def test_together_or_one_by_one_the_boundaries_are_the_same(world: World, steps: list[Any]) -> None:
    topic = f"t{next(_names)}"
    world.log.create(topic, PARTITIONS)
    names = {together: f"{topic}-{'together' if together else 'single'}" for together in (True, False)}
    for name in names.values():
        world.register(name=name, topic=topic, table=name.replace("-", "_"), settings={"offset_gaps": True})
    for kind, what, how in steps:
        if kind == "append":
            world.log.append(topic, *how, partition=what)
        elif kind == "delete":
            present = world.log.topics[topic][what]
            world.log.delete_records(topic, min(present.start_offset + how, len(present.stamps_ms)), partition=what)
        else:
            for name in names.values():
                try:
                    world.ledger.freeze_or_get(name, hour(what), world.log, SOON)
                except RecordsLost:
                    pass
    assert freeze_all(world, names[True], together=True) == freeze_all(world, names[False], together=False)


def test_the_questions_that_are_the_same_for_all_hours_are_asked_once(world: World) -> None:
    world.fill(*(hour + 0.5 for hour in range(8, 20)))
    plan = world.ledger.plan_load("p", world.log, NOW)
    asked: list[str] = []
    world.log.interrupt = asked.append
    assert len(world.ledger.freeze_plan(plan, world.log, NOW)) == 12
    assert asked.count("end_offsets") == 2, "the high watermark and the last stable offset"
    assert asked.count("topic") == 2, "before the others and after them"


def test_what_lies_before_a_refused_hour_is_frozen(world: World) -> None:
    """A single transaction for all of them would roll back the good ones too."""
    world.log.append("t", *stamps(8.5, 9.5, 10.5, 11.5))
    world.log.topics["t"][0].stable_end = 2
    world.register()
    plan = world.ledger.plan_load("p", world.log, NOW, until=at(12))
    with pytest.raises(TransactionOpen, match="2015-05-17T10:00:00Z"):
        world.ledger.freeze_plan(plan, world.log, NOW)
    with world.ledger.engine.connect() as connection:
        assert [one.interval for one in freezing.windows_in(connection, "p", at(0), at(24))] == [hour(8), hour(9)]


def test_a_log_that_becomes_another_one_while_it_is_asked_is_refused(world: World) -> None:
    """The last witness was checked before the new boundaries' records were read, which were then those of another log."""
    world.fill(10.2, 10.4, 11.2, 11.4, 12.2, freeze=[10])

    def restore(question: str) -> None:
        if question == "last_records":
            asked.append(question)
        if len(asked) == 2:
            world.log.cut("t", 0)
            world.log.append("t", *stamps(10.2, 10.4, 11.2, 11.4, 12.2))

    asked: list[str] = []
    world.log.interrupt = restore
    with pytest.raises(LogChanged):
        world.freeze(11)
    assert len(asked) >= 2


@pytest.mark.parametrize("missing", [0, 3, WINDOWS_TOGETHER, WINDOWS_TOGETHER + 1])
def test_hours_are_taken_together_as_far_as_they_touch_and_no_more_than_a_limit(missing: int) -> None:
    first = [Interval.hour(at(number)) for number in range(missing)]
    later = [Interval.hour(at(100))]
    found = list(runs([*first, *later]))
    assert [one for run in found for one in run] == [*first, *later]
    assert found[-1] == later
    assert all(len(run) <= WINDOWS_TOGETHER for run in found)
    assert all(left.end == right.start for run in found for left, right in itertools.pairwise(run))
    assert len(found) == 1 + -(-missing // WINDOWS_TOGETHER)
