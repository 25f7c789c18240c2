"""The paper's consumer registries, as a mirror that is written asynchronously."""

from __future__ import annotations

import json
from math import inf

import pytest

from broker.coordination.consumer_registry import TICK_SECONDS, WRITES_PER_SECOND, ConsumerRegistry, Shown
from broker.coordination.member import EventFan
from broker.coordination.store import Node
from tests.sim.coordinated import World
from tests.sim.zookeeper_store import SimStore


class _Mirror:
    def __init__(self, world: World, name: str = "1") -> None:
        self.world = world
        self.store: SimStore = world.zookeeper.client(name, lambda: world.timeline.after(0, self.store.drain))
        self.registry = ConsumerRegistry(self.store, world.timeline.now_ms)
        self.store.begin(EventFan([self.registry]))
        self._tick()

    def _tick(self) -> None:
        self.registry.tick(self.world.timeline.now)
        self.world.timeline.after(0.1, self._tick)


def _shown(*consumers: str) -> Shown:
    owners = {("access", index): consumer for index, consumer in enumerate(consumers)}
    return Shown(subscriptions=dict.fromkeys(consumers, ("access",)), owners=owners)


@pytest.fixture
def world() -> World:
    return World()


def _data(world: World, path: str) -> bytes | None:
    found = world.zookeeper.read(f"/consumers/{path}")
    return found.data if isinstance(found, Node) else None


def test_a_group_is_shown_as_the_paper_has_it(world: World) -> None:
    mirror = _Mirror(world)
    mirror.registry.show("loaders", _shown("c1", "c2"))
    mirror.registry.committed("loaders", "access", 0, 41)
    mirror.registry.committed("loaders", "access", 0, 42)
    world.run(2)
    ids = _data(world, "loaders/ids/c1")
    assert ids is not None
    row = json.loads(ids)
    assert (row["version"], row["subscription"], row["pattern"]) == (1, {"access": 1}, "static")
    assert _data(world, "loaders/owners/access/1") == b"c2-0"
    assert _data(world, "loaders/offsets/access/0") == b"42"
    mirror.registry.show("loaders", _shown("c2"))
    world.run(2)
    assert _data(world, "loaders/ids/c1") is None
    assert _data(world, "loaders/owners/access/0") == b"c2-0"
    assert _data(world, "loaders/owners/access/1") is None


def test_who_is_gone_is_not_shown_and_what_was_read_is(world: World) -> None:
    mirror = _Mirror(world)
    mirror.registry.show("loaders", _shown("c1"))
    mirror.registry.committed("loaders", "access", 0, 42)
    world.run(2)
    world.zookeeper.expire(mirror.store.session_id)
    assert _data(world, "loaders/ids/c1") is None
    world.run(2)
    assert _data(world, "loaders/ids/c1") is not None, "the new session shows its groups again"
    mirror.registry.hide("loaders")
    world.run(2)
    assert _data(world, "loaders/ids/c1") is None
    assert _data(world, "loaders/offsets/access/0") == b"42"


def test_a_former_coordinator_does_not_take_away_what_the_new_one_shows(world: World) -> None:
    old, new = _Mirror(world, "1"), _Mirror(world, "2")
    old.registry.show("loaders", _shown("c1"))
    world.run(2)
    new.registry.show("loaders", _shown("c1"))
    world.run(2)
    old.registry.hide("loaders")
    world.run(2)
    found = world.zookeeper.read("/consumers/loaders/owners/access/0")
    assert isinstance(found, Node)
    assert found.ephemeral_owner == new.store.session_id


def test_busy_groups_do_not_keep_zookeeper_busy(world: World) -> None:
    mirror = _Mirror(world)
    written: list[object] = []
    world.zookeeper.observers.append(lambda *transaction: written.append(transaction))
    for second in range(5):
        for partition in range(300):
            mirror.registry.committed("loaders", "access", partition, second)
        world.run(1)
    assert len(written) <= 6 * WRITES_PER_SECOND + 4
    world.run(3)
    assert {_data(world, f"loaders/offsets/access/{partition}") for partition in range(300)} == {b"4"}


def test_lost_answers_leave_the_newest(world: World) -> None:
    mirror = _Mirror(world)
    world.run(1)
    world.zookeeper.answer_loss = 0.3
    for offset in range(30):
        mirror.registry.committed("loaders", "access", 0, offset)
        mirror.registry.show("loaders", _shown(f"c{offset}"))
        world.run(0.2)
    world.run(10)
    world.zookeeper.answer_loss = 0.0
    world.run(5)
    assert _data(world, "loaders/offsets/access/0") == b"29"
    assert world.zookeeper.children("/consumers/loaders/ids") == ("c29",)


@pytest.mark.parametrize(("group", "name"), [("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a.b c", "a.b c"), ("ä\0", "%C3%A4%00")])
def test_any_name_of_a_group_becomes_one_of_a_node(world: World, group: str, name: str) -> None:
    mirror = _Mirror(world)
    mirror.registry.committed(group, "access", 0, 1)
    world.run(1)
    assert _data(world, f"{name}/offsets/access/0") == b"1"


def test_it_is_due_only_while_there_is_something_to_write(world: World) -> None:
    mirror = _Mirror(world)
    world.run(1)
    assert mirror.registry.due == inf
    mirror.registry.committed("loaders", "access", 0, 41)
    assert mirror.registry.due <= world.timeline.now + TICK_SECONDS
    world.run(1)
    assert mirror.registry.due == inf


def test_a_consumer_with_too_much_to_say_keeps_nobody_else_from_being_shown(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = _Mirror(world)
    topics = [f"{number:0200}" for number in range(3_000)]
    mirror.registry.show("loaders", Shown(subscriptions={"c1": topics, "c2": ("access",)}, owners={("access", 0): "c1"}))
    mirror.registry.committed("loaders", "access", 0, 42)
    world.run(2)
    assert _data(world, "loaders/ids/c1") is None
    assert _data(world, "loaders/ids/c2") is not None
    assert _data(world, "loaders/owners/access/0") == b"c1-0"
    assert _data(world, "loaders/offsets/access/0") == b"42"
    assert "/consumers/loaders/ids/c1 is not shown" in caplog.text
