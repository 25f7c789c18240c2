"""A replica whose disk fails, in the simulation: nobody counts on it any more, and another broker leads."""

from __future__ import annotations

from dataclasses import replace

from broker.coordination.image import NO_LEADER, PartitionState
from tests.sim.cluster import TOPIC, ClusterStage, draw_story
from tests.sim.world import SECOND


def test_a_leader_whose_log_has_failed_is_followed_by_another() -> None:
    stage = ClusterStage(replace(draw_story(1), minimum=2, partitions=1, makes_topics=False, faults=(), waits_for_flush=False))
    stage.begin()
    stage.run(5 * SECOND)
    engines = [node.engine for node in stage.nodes if node.engine is not None]
    (engine,) = [one for one in engines if (held := one.partitions.held(TOPIC, 0)) is not None and held.is_led]
    partition = engine.partitions.get(TOPIC, 0)
    partition.log.go_offline("the disk has failed")
    engine.context.exposure.on_offline(partition)
    member, me = engine.context.cluster, engine.config.broker_id
    assert member is not None

    def state() -> PartitionState:
        return member.image.topics[TOPIC].states[0]

    assert stage.until(lambda: state().leader not in (NO_LEADER, me), 10 * SECOND), state()
    assert me not in state().isr
    assert not state().is_lost
