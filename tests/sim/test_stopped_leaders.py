"""When leaders may believe in themselves, in the simulation: not when they stood still and do not know yet that another leads, but
all the time where nothing is wrong with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.cluster import Cluster
from broker.coordination.image import PartitionState
from broker.partitions.partition import Partition
from tests.sim.cluster import TOPIC, ClusterStage, draw_story
from tests.sim.cluster_nodes import ClusterNode
from tests.sim.world import MS, SECOND


def test_a_leader_that_stood_still_until_another_was_elected_does_not_believe_in_itself() -> None:
    """However long it is allowed to. What it is asked in that moment lies in its sockets already: a produce, or what a group has
    committed."""
    stage = begun_stage(leader_confirm_ms=60_000)
    first, leader, partition, cluster = led_in(stage)
    assert cluster.why_not(partition) is None

    def is_over() -> bool:
        now = stage.invariants.state(TOPIC, 0)
        return now is not None and now.leader not in (first.leader, -1)

    leader.pause()
    assert stage.until(is_over, 10 * SECOND)
    leader.resume()
    assert partition.is_led, "it has learnt nothing yet"
    assert cluster.why_not(partition) is not None
    stage.run(stage.world.now + 500 * MS)
    assert not partition.is_led


def test_a_leader_that_nobody_disturbs_is_confirmed_though_nothing_is_written_and_zookeeper_is_away() -> None:
    """Its followers' requests are all that confirms it, and one that has nothing to fetch is held."""
    stage = begun_stage()
    _, _, partition, cluster = led_in(stage)
    stage.zookeeper.stop()
    for _ in range(100):
        stage.run(stage.world.now + 50 * MS)
        assert cluster.why_not(partition) is None


def begun_stage(**settings: Any) -> ClusterStage:
    """Three brokers whose sessions last two seconds, and a topic."""
    stage = ClusterStage(replace(draw_story(1), minimum=2, partitions=1, makes_topics=False, faults=(), waits_for_flush=False))
    for node in stage.nodes:
        node.config = replace(node.config, **settings)
    stage.begin()
    stage.run(5 * SECOND)
    return stage


def led_in(stage: ClusterStage) -> tuple[PartitionState, ClusterNode, Partition, Cluster]:
    """Who leads, and what of it: state, machine, partition, and what its handlers ask."""
    state = stage.invariants.state(TOPIC, 0)
    assert state is not None
    leader = stage.nodes[state.leader]
    partition = leader.held(TOPIC, 0)
    assert leader.engine is not None
    assert leader.engine.cluster is not None
    assert partition is not None
    return state, leader, partition, leader.engine.cluster
