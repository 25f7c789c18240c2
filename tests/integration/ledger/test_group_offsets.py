"""The guard on committed offsets: they only move ahead, one run at a time, whatever order runs end in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from logbus.errors import TopicRecreated, UserError, WindowNotLoaded
from logbus.status.group_offsets import Checkpoint, commit_ends
from sqlalchemy import create_engine

from tests.support.fake_groups import FakeGroups
from tests.support.fake_log import FakeLog
from tests.support.ledgers import World, at
from tests.support.loads import load_hours

HOURS = (10, 11, 12)


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


@pytest.fixture
def loaded(world: World) -> World:
    """Three loaded hours with one record each, and one that is only frozen."""
    world.fill(*HOURS, 13, 14)
    load_hours(world, *HOURS)
    world.freeze(13)
    return world


def commit(world: World, groups: FakeGroups, *hours: int) -> Checkpoint:
    windows = [world.ledger.window("p", at(hour)) for hour in hours]
    return commit_ends(world.ledger.engine, groups, world.log, "g", windows)


def test_offsets_move_ahead_only_whoever_ends_last(loaded: World, groups: FakeGroups) -> None:
    assert commit(loaded, groups, 11).committed == {0: 2}
    late = commit(loaded, groups, 10)
    assert (late.committed, late.ahead) == ({}, {0: 2})
    assert commit(loaded, groups, 12, 11).committed == {0: 3}
    assert groups.committed("g") == {("t", 0): 3}
    assert groups.notes[-1] == "logbus p 2015-05-17T13:00:00Z"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda hour: commit(loaded, groups, hour), HOURS * 3))
    assert groups.committed("g") == {("t", 0): 3}


def test_what_is_not_loaded_is_not_committed(loaded: World, groups: FakeGroups) -> None:
    with pytest.raises(WindowNotLoaded, match="2015-05-17T13:00:00Z"):
        commit(loaded, groups, 12, 13)
    assert groups.committed("g") == {}


def test_a_topic_that_was_made_again_is_refused_and_offsets_from_before_are_replaced(loaded: World, groups: FakeGroups) -> None:
    groups.commit("g", {("t", 0): 99})
    assert commit(loaded, groups, 10).committed == {0: 1}
    loaded.log.create("t")
    with pytest.raises(TopicRecreated):
        commit(loaded, groups, 10)


def test_no_window_is_no_checkpoint() -> None:
    with pytest.raises(UserError, match="nothing to commit"):
        commit_ends(create_engine("postgresql+psycopg://"), FakeGroups(), FakeLog(), "g", [])
