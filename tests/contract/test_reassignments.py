"""One suite over the fake, our broker and Apache Kafka: reassignments, preferred leaders and throttles of one broker. What several
brokers do is in tests/integration/broker/test_cluster_admin.py."""

from __future__ import annotations

import pytest
from logbus.errors import UserError
from logbus.kafka.reassignments import ThrottledReplicas, Throttles
from logbus.waiting import wait_until

from tests.support.kafka_sides import PARTITIONS, Side

NOBODY = 4_711


def only_broker(side: Side) -> int:
    (broker,) = side.reassignments.facts().brokers
    return broker.broker_id


def test_what_is_moved_to_where_it_is_does_not_move(side: Side, topic: str) -> None:
    me = only_broker(side)
    side.reassignments.alter({(topic, 0): [me]})
    side.reassignments.alter({(topic, 1): None})  # nothing to cancel
    parts = [part for part in side.reassignments.facts().partitions if part.topic == topic]
    assert [(part.targets, part.leader, part.is_moving) for part in parts] == [((me,), me, False)] * len(PARTITIONS)


def test_a_broker_that_is_not_there_is_refused_by_the_partitions_name(side: Side, topic: str) -> None:
    with pytest.raises(UserError, match=f"{topic}-1"):
        side.reassignments.alter({(topic, 1): [NOBODY]})


def test_who_leads_what_it_is_to_lead_needs_no_election(side: Side, topic: str) -> None:
    assert side.reassignments.elect_preferred([(topic, part) for part in PARTITIONS]) == {}


def test_a_throttle_is_seen_until_it_is_removed(side: Side, topic: str) -> None:
    me = only_broker(side)

    def throttled() -> tuple[list[int], list[str]]:
        throttles = side.reassignments.throttles(side.reassignments.facts())
        return list(throttles.brokers), [name for name in throttles.topics if name == topic]

    replicas = ThrottledReplicas(brokers=[me], at_leaders={topic: f"0:{me}"}, at_followers={topic: f"1:{me}"})
    side.reassignments.throttle(1_000_000, replicas)
    wait_until(lambda: all(throttled()), what="the throttle")
    assert throttled() == ([me], [topic])
    side.reassignments.unthrottle(Throttles(brokers=[me], topics=[topic]))
    wait_until(lambda: not any(throttled()), what="the end of the throttle")
    assert throttled() == ([], [])


def test_the_minimum_of_replicas_in_sync_is_known_for_the_topics_that_are_named(side: Side, topic: str) -> None:
    assert side.reassignments.facts([topic]).insync_min[topic] == 1
