"""Leaders that stand still and go on, in the simulation: what they may say when they do not know yet that another leads."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.cluster import TOPIC, ClusterStage, draw_story
from tests.sim.world import MS, SECOND


def test_a_leader_that_stood_still_until_another_was_elected_does_not_believe_in_itself() -> None:
    """However long it is allowed to. What it is asked in that moment lies in its sockets already: a produce, or what a group has
    committed."""
    stage = ClusterStage(replace(draw_story(1), minimum=2, partitions=1, makes_topics=False, faults=(), waits_for_flush=False))
    for node in stage.nodes:
        node.config = replace(node.config, leader_confirm_ms=60_000)
    stage.begin()
    stage.run(5 * SECOND)
    first = stage.invariants.state(TOPIC, 0)
    assert first is not None
    leader = stage.nodes[first.leader]
    partition = leader.held(TOPIC, 0)
    assert leader.engine is not None
    assert leader.engine.cluster is not None
    assert partition is not None
    assert leader.engine.cluster.why_not(partition) is None

    def is_over() -> bool:
        now = stage.invariants.state(TOPIC, 0)
        return now is not None and now.leader not in (first.leader, -1)

    leader.pause()
    assert stage.until(is_over, 10 * SECOND)
    leader.resume()
    assert partition.is_led, "it has learnt nothing yet"
    assert leader.engine.cluster.why_not(partition) is not None
    stage.run(stage.world.now + 500 * MS)
    assert not partition.is_led
