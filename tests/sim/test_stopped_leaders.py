"""When leaders may believe in their leadership, in the simulation: not while stopped and unaware of a new leader, but
all the time if nothing is wrong with them.
"""

from __future__ import annotations

from tests.sim.cluster import quiet_stage
from tests.sim.stage import TOPIC
from tests.sim.world import MS, SECOND


def test_a_leader_that_stood_still_until_another_was_elected_does_not_believe_in_itself() -> None:
    """However long it may otherwise believe so. What it is asked at that moment is already in its sockets: a produce request, or
    a query for a group's committed offsets."""
    stage = quiet_stage(leader_confirm_ms=60_000)
    stage.run(5 * SECOND)
    first, leader, _, cluster, partition = stage.leader()
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
    """Only its followers' requests confirm it, and the broker holds back a fetch that has nothing to return."""
    stage = quiet_stage()
    stage.run(5 * SECOND)
    _, _, _, cluster, partition = stage.leader()
    stage.zookeeper.stop()
    for _ in range(100):
        stage.run(stage.world.now + 50 * MS)
        assert cluster.why_not(partition) is None


def test_a_leader_that_died_while_zookeeper_was_away_is_not_waited_for() -> None:
    """Whoever has no session yet is given time to get one, but its port refuses connections."""
    stage = quiet_stage()
    stage.run(5 * SECOND)
    first = stage.leader()
    sessions = list(stage.zookeeper.sessions)
    stage.zookeeper.stop()
    first.node.kill()
    stage.run(stage.world.now + 10 * SECOND)
    stage.zookeeper.start()
    for session_id in sessions:
        stage.zookeeper.expire(session_id)

    def is_led() -> bool:
        now = stage.invariants.state(TOPIC, 0)
        return now is not None and now.leader not in (first.state.leader, -1)

    assert stage.until(is_led, 1_500 * MS), "less than a session"
