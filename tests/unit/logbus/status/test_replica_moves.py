"""A move from its beginning to its end, over a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from logbus.kafka.client import PartitionId
from logbus.kafka.reassignments import throttled_replicas
from logbus.status.replica_moves import MoveProgress, ReplicaMoves, progress

from tests.support.fake_reassignments import SIZE, FakeReassignments

BROKERS = dict.fromkeys((1, 2, 3))
MOVED: PartitionId = ("clicks", 0)
TARGETS: Mapping[PartitionId, tuple[int, ...]] = {MOVED: (3, 2)}


def moving() -> tuple[FakeReassignments, ReplicaMoves]:
    cluster = FakeReassignments(BROKERS, {MOVED: (1, 2), ("clicks", 1): (2, 3)})
    moves = ReplicaMoves(cluster, poll_seconds=0)
    moves.begin(cluster.facts(), TARGETS, 1_000)
    return cluster, moves


def test_the_throttle_comes_before_the_move_and_names_what_is_read_and_what_is_copied() -> None:
    cluster, _ = moving()
    assert cluster.calls == ["throttle", "alter"]
    assert cluster.throttled is not None
    assert (cluster.throttled.at_leaders, cluster.throttled.at_followers) == ({"clicks": "0:1,0:2"}, {"clicks": "0:3"})
    assert cluster.throttled.brokers == [1, 2, 3]
    assert throttled_replicas(cluster.facts(), {}) == cluster.throttled, "the same for whoever looks on"


def test_what_is_left_is_what_the_new_replicas_lack() -> None:
    cluster, _ = moving()
    now = progress(cluster.facts())
    assert ([part.partition_id for part in now.moving], now.replicas_left, now.bytes_left) == ([MOVED], 1, SIZE)
    assert not progress(cluster.facts(), [("clicks", 1)]).moving


def test_at_the_end_preferred_leaders_are_elected_and_the_throttle_goes_and_not_before() -> None:
    cluster, moves = moving()
    assert moves.clear(TARGETS) is None
    cluster.arrive()
    cluster.parts[MOVED] = replace(cluster.parts[MOVED], leader=2)
    cleared = moves.clear(TARGETS)
    assert cleared is not None
    assert (cleared.throttles.brokers, cleared.throttles.topics) == ([1, 2, 3], ["clicks"])
    assert cluster.parts[MOVED].leader == 3
    assert cluster.calls[2:] == ["elect", "unthrottle"]


def test_a_throttle_stays_while_anything_else_moves() -> None:
    cluster, moves = moving()
    cleared = moves.clear([("clicks", 1)])
    assert cleared is not None
    assert not cleared.throttles
    assert cluster.set


def test_watching_ends_when_nothing_moves_any_more() -> None:
    cluster, moves = moving()
    figures: list[int] = []

    def show(now: MoveProgress) -> None:
        figures.append(now.replicas_left)
        cluster.arrive()

    cluster.is_away.extend([True, True, False, True])
    moves.watch(show)
    assert figures == [1, 0], "a broker that is restarted ends no watching"


def test_a_cancelled_move_ends_where_it_began() -> None:
    cluster, moves = moving()
    moves.cancel([MOVED])
    assert (set(cluster.parts[MOVED].targets), cluster.facts().moving) == ({1, 2}, [])


def test_leads_are_given_to_replicas_in_sync_and_kept_where_there_is_none() -> None:
    cluster = FakeReassignments(BROKERS, {("a", 0): (1, 2), ("a", 1): (2, 1), ("b", 0): (1,)})
    assert ReplicaMoves(cluster).give_leads_away(cluster.facts(), 1) == {}
    assert [cluster.parts[key].leader for key in sorted(cluster.parts)] == [2, 2, 1]
    assert cluster.parts["a", 0].targets == (2, 1), "balancing does not give it back"
    calls = list(cluster.calls)
    assert ReplicaMoves(cluster).give_leads_away(cluster.facts(), 1) == {}
    assert cluster.calls == calls, "nothing to do"
    del cluster.brokers[1]
    assert ReplicaMoves(cluster).give_leads_away(cluster.facts(), 1) == {}, "a dead broker leads nothing"
