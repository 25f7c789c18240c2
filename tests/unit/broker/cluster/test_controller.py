"""The controller at work over a simulated ZooKeeper: brokers that join, die, lose answers, and depose each other."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any
from uuid import UUID

import pytest
from logbus_broker.cluster import metadata_writes, znodes
from logbus_broker.cluster.assignment import reassign
from logbus_broker.cluster.controller import Mandate, write_reassigned, write_states
from logbus_broker.cluster.leader_election import Decision, LeaderBalancing
from logbus_broker.cluster.metadata_image import NO_LEADER, PartitionState, StateChange
from logbus_broker.cluster.metadata_log import log_entry, state_writes
from logbus_broker.cluster.store import Committed, Node, NoNode, commit

from tests.sim.coordinated import Controlled, World, create

SETTLED = 7.0  # seconds after which a broker that is not registered counts as dead


def cluster(*brokers: int, seed: int = 0, minimum: int = 1) -> tuple[World, list[Controlled]]:
    world = World(seed)
    processes = [world.joined(Controlled(world, broker, minimum=minimum)) for broker in brokers]
    world.run(SETTLED)
    return world, processes


def controllers(brokers: list[Controlled]) -> list[Mandate]:
    return [broker.controller.mandate for broker in brokers if broker.controller.mandate is not None]


def write_state(world: World, broker: Controlled, **changes: Any) -> None:
    """Change the state of the topic's first partition, as its leader does."""
    old, topic_id = world.zookeeper.state("t"), broker.image.topics["t"].topic_id
    change = StateChange(topic="t", topic_id=topic_id, index=0, state=replace(old, version=old.version + 1, **changes))
    assert isinstance(world.answered(broker, commit(state_writes([change]))), Committed)


def test_leaders_are_elected_for_a_broker_whose_session_has_ended() -> None:
    world, (one, two, _three) = cluster(1, 2, 3)
    create(world, one, "t", (3, 2, 1), partitions=600)
    _three.kill()
    world.run(10)
    for index in (0, 250, 599):
        state = world.zookeeper.state("t", index)
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2, 1))
        assert state.controller_epoch == 1
    assert two.image.topics["t"].states[0] == world.zookeeper.state("t")


def test_the_next_controller_takes_over_from_one_whose_port_refuses_and_elects() -> None:
    world, (one, two, three) = cluster(1, 2, 3)
    create(world, two, "t", (1, 2, 3))
    one.kill()
    two.controller.suspect({1})
    three.controller.suspect({1})
    world.run(0.2)
    assert [mandate.epoch for mandate in controllers([two, three])] == [2]
    assert world.zookeeper.state("t").leader == 2


def test_a_controller_that_was_deposed_writes_nothing_and_notices() -> None:
    world, (one, two) = cluster(1, 2)
    topic = create(world, one, "t", (1, 2))
    one.store.pause()
    two.controller.suspect({1})
    world.run(1)
    old = world.zookeeper.state("t")
    assert old.leader == 2
    mandate = one.controller.mandate
    assert mandate is not None
    one.store.resume()
    forged = Decision(topic="t", index=0, state=replace(old, leader=1, version=old.version + 1))
    with pytest.raises(Exception, match="became the controller after epoch 1"):
        world.answered(one, write_states(mandate, [forged], {"t": topic.topic_id}))
    world.run(2)
    assert one.controller.mandate is None
    assert world.zookeeper.state("t").leader == 2


def test_after_an_outage_of_zookeeper_nobody_is_dead_before_they_could_be_back() -> None:
    world, (one, two) = cluster(1, 2)
    create(world, one, "t", (2, 1))
    world.zookeeper.stop()
    world.run(20)
    world.zookeeper.start()
    world.zookeeper.expire(two.store.session_id)
    world.run(3)
    state = world.zookeeper.state("t")
    assert (state.leader, state.leader_epoch, state.isr) == (2, 0, (2, 1))


def test_of_many_decisions_only_that_one_is_refused_whose_state_has_changed() -> None:
    world, (one, _) = cluster(1, 2)
    topic = create(world, one, "t", (1, 2), partitions=5)
    mandate = one.controller.mandate
    assert mandate is not None
    new = PartitionState(leader=2, leader_epoch=1, isr=(2,), version=1)
    decisions = [Decision(topic="t", index=index, state=new) for index in range(5)]
    other = StateChange(topic="t", topic_id=topic.topic_id, index=3, state=replace(topic.states[3], isr=(1,), version=1))
    world.answered(one, commit(state_writes([other])))
    done = world.answered(one, write_states(mandate, decisions, {"t": topic.topic_id}))
    assert [decision.index for decision in done] == [0, 1, 2, 4]
    again = UUID(int=99)
    assert world.answered(one, write_states(mandate, decisions, {"t": again})) == [], "another topic of the same name"


@pytest.mark.parametrize("seed", range(6))
def test_with_lost_answers_everybody_has_a_leader_in_the_end(seed: int) -> None:
    world, (one, two, three) = cluster(1, 2, 3, seed=seed)
    create(world, one, "t", (3, 2, 1), partitions=260)
    world.zookeeper.answer_loss = 0.4
    three.kill()
    world.run(15)
    one.kill()
    world.run(15)
    world.zookeeper.answer_loss = 0.0
    world.run(20)
    assert len(controllers([two])) == 1
    for index in (0, 259):
        state = world.zookeeper.state("t", index)
        assert (state.leader, state.isr) == (2, (2,))


def test_a_reassignment_ends_once_the_new_replica_is_in_sync() -> None:
    world, (one, two, _three) = cluster(1, 2, 3)
    create(world, one, "t", (1, 2), partitions=1)
    step = reassign(two.image.topics["t"], {0: (3, 2)})
    assert step is not None
    assert world.answered(two, write_reassigned(step, None))
    assert not world.answered(two, write_reassigned(step, None)), "the version is another"
    write_state(world, one, isr=(1, 2, 3))
    world.run(1)
    assert world.zookeeper.state("t").handover_to == 3
    write_state(world, one, leader=3, leader_epoch=1, handover_to=None)
    world.run(1)
    topic = two.image.topics["t"]
    assert (topic.replicas, dict(topic.adding), dict(topic.removing)) == (((3, 2),), {}, {})
    assert world.zookeeper.state("t").isr == (2, 3)


def test_a_deleted_topics_name_is_free_for_one_that_counts_as_the_same() -> None:
    world, (one, two) = cluster(1, 2)
    for number, name in enumerate(("page.views", "page_views", "page.views")):
        topic = create(world, one, name, (1, 2))
        world.run(1)
        assert list(two.image.topics) == [name], number
        world.answered(two, metadata_writes.delete_topic(name, topic.topic_id))
        world.run(5)
        assert dict(one.image.topics) == {}


def test_a_marked_topic_is_deleted_with_all_that_it_has() -> None:
    world, (one, two) = cluster(1, 2)
    topic = create(world, one, "t", (1, 2), partitions=600)
    world.answered(two, metadata_writes.delete_topic("t", topic.topic_id))
    world.run(5)
    assert [path for path in world.zookeeper.nodes if path.endswith("/t") or "/t/" in path] == []
    assert isinstance(world.zookeeper.read(znodes.topic_id_path(topic.topic_id)), NoNode)
    for broker in (one, two):
        assert dict(broker.image.topics) == {}
        assert broker.image.deleting == frozenset()


@pytest.mark.parametrize("seed", range(5))
def test_a_deletion_goes_on_whatever_is_lost_and_spares_the_next_topic_of_that_name(seed: int) -> None:
    world, (one, two) = cluster(1, 2, seed=seed)
    topic = create(world, one, "t", (1, 2), partitions=600)
    world.answered(one, metadata_writes.delete_topic("t", topic.topic_id))
    world.zookeeper.answer_loss = 0.3
    world.run(seed / 10)
    one.kill()
    world.run(30)
    world.zookeeper.answer_loss = 0.0
    world.run(10)
    assert dict(two.image.topics) == {}
    create(world, two, "t", (2,), number=2)
    world.run(5)
    assert world.zookeeper.state("t").leader == 2


def test_the_metadata_log_keeps_the_newest_two_thousand_and_all_of_the_last_minute() -> None:
    world, (one,) = cluster(1)
    for _ in range(2_300):
        one.ask(commit([log_entry([])]))
    world.run(5)
    before = len(world.zookeeper.log_positions())
    assert before >= 2_300
    world.run(70)
    assert len(world.zookeeper.log_positions()) == before, "none was a minute old when it was looked at"
    world.run(60)
    left = world.zookeeper.log_positions()
    assert len(left) == 2_000
    assert left == list(range(left[0], left[0] + 2_000))


def test_preferred_leaders_are_asked_for_where_somebody_asks() -> None:
    world, (one, two) = cluster(1, 2)
    create(world, one, "t", (2, 1), partitions=1)
    write_state(world, two, leader=1, leader_epoch=1)
    world.run(2)
    assert world.zookeeper.state("t").handover_to is None
    one.controller.elect([("t", 0)], is_unclean=False)
    world.run(1)
    assert world.zookeeper.state("t").handover_to == 2
    world.run(5)
    assert world.zookeeper.state("t").handover_to is None, "nobody answered"
    world.run(287)
    assert world.zookeeper.state("t").handover_to == 2, "all of broker 2's leads are elsewhere"


@pytest.mark.parametrize(("interval_seconds", "heir"), [(30.0, 2), (inf, None)])
def test_leads_return_to_preferred_leaders_as_often_as_is_set(interval_seconds: float, heir: int | None) -> None:
    world = World()
    balancing = LeaderBalancing(interval_seconds=interval_seconds)
    one, two = (world.joined(Controlled(world, broker, balancing=balancing)) for broker in (1, 2))
    create(world, one, "t", (2, 1), partitions=1)
    write_state(world, two, leader=1, leader_epoch=1)
    world.run(32)
    assert world.zookeeper.state("t").handover_to == heir


def test_an_unclean_election_is_held_where_somebody_asks() -> None:
    world, (one, _two, three) = cluster(1, 2, 3)
    create(world, one, "t", (3, 2, 1), partitions=1)
    write_state(world, three, isr=(3,))
    three.kill()
    world.run(10)
    assert world.zookeeper.state("t").leader == NO_LEADER
    one.controller.elect([("t", 0)], is_unclean=True)
    world.run(1)
    state = world.zookeeper.state("t")
    assert (state.leader, state.isr, state.is_recovering) == (2, (2,), True)
    assert (one.controller.elections, one.controller.unclean_elections) == (1, 1)
    assert isinstance(world.zookeeper.read(znodes.CONTROLLER), Node)
