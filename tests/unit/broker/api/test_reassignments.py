"""Partitions that are reassigned, and leaders that are elected on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.cluster.metadata_image import StateChange
from logbus_broker.cluster.metadata_log import state_writes
from logbus_broker.cluster.store import Script, commit, run_script
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.clustered import ClusteredBroker, ClusterOfBrokers
from tests.support.engine import Harness
from tests.unit.broker.api.test_cluster_topics import create, metadata

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    cluster = ClusterOfBrokers(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def alone(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path, broker_id=1)
    broker.create("clicks", 2)
    return broker


def move(broker: Harness, topic: str, targets: Mapping[int, list[int] | None], **values: Any) -> dict[int, int]:
    """The error codes by partition."""
    row = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopic
    partitions = [row.ReassignablePartition(partition_index=index, replicas=brokers) for index, brokers in targets.items()]
    asked = [row(name=topic, partitions=partitions)]
    values = {"timeout_ms": 5_000, "allow_replication_factor_change": True, **values}
    (answer,) = broker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=asked, **values).responses
    return {part.partition_index: part.error_code for part in answer.partitions}


def moving(broker: Harness, *asked: tuple[str, list[int]]) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    row = request_class(ApiKey.LIST_PARTITION_REASSIGNMENTS).ListPartitionReassignmentsTopics
    topics = [row(name=name, partition_indexes=indexes) for name, indexes in asked] or None
    answer = broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=1_000, topics=topics)
    return {
        (topic.name, part.partition_index): (part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    }


def elect(broker: Harness, kind: int, *keys: tuple[str, int], timeout_ms: int = 8_000) -> tuple[int, dict[tuple[str, int], int]]:
    row = request_class(ApiKey.ELECT_LEADERS).TopicPartitions
    asked = [row(topic=topic, partitions=[index]) for topic, index in keys] or None
    answer = broker.ask(ApiKey.ELECT_LEADERS, 2, election_type=kind, topic_partitions=asked, timeout_ms=timeout_ms)
    codes = {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }
    return answer.error_code, codes


def store_state(broker: ClusteredBroker, topic: str, **changes: Any) -> None:
    """Store a state of partition 0 as its leader would write it."""
    known = broker.member.image.topics[topic]
    state = replace(known.states[0], version=known.states[0].version + 1, **changes)

    def script() -> Script[None]:
        yield from commit(state_writes([StateChange(topic=topic, topic_id=known.topic_id, index=0, state=state)]))

    run_script(broker.store, script(), lambda *_: None)
    broker.timeline.run(0.5)


def controller(cluster: ClusterOfBrokers) -> ClusteredBroker:
    return cluster.brokers[cluster.brokers[1].member.image.controller.broker_id]


def test_a_move_is_asked_for_at_any_broker_and_ends_when_the_new_replica_is_in_sync(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2], 1: [2, 1]})
    cluster.timeline.run(0.5)
    assert move(cluster.brokers[3], "clicks", {0: [1, 3]}) == {0: 0}
    assert moving(cluster.brokers[3]) == {("clicks", 0): ([1, 3, 2], [3], [2])}
    cluster.timeline.run(0.5)
    assert moving(cluster.brokers[2], ("clicks", [0, 1, 9]), ("nothing", [0])) == {("clicks", 0): ([1, 3, 2], [3], [2])}
    store_state(cluster.brokers[1], "clicks", isr=(1, 2, 3))
    cluster.timeline.run(2)
    assert moving(cluster.brokers[2]) == {}
    partition = metadata(cluster.brokers[2], "clicks").partitions[0]
    assert (partition.replica_nodes, partition.isr_nodes) == ([1, 3], [1, 3])


def test_a_move_that_is_cancelled_leaves_the_replicas_where_they_were(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2]})
    assert move(cluster.brokers[1], "clicks", {0: [3, 2]}) == {0: 0}
    assert move(cluster.brokers[1], "clicks", {0: None}) == {0: 0}
    cluster.timeline.run(2)
    assert moving(cluster.brokers[1]) == {}
    assert sorted(metadata(cluster.brokers[1], "clicks").partitions[0].replica_nodes) == [
        1,
        2,
    ]  # as in Kafka, the order is not restored
    assert move(cluster.brokers[1], "clicks", {0: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


def test_each_partition_that_cannot_move_says_why_and_the_others_do(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2], 1: [1, 2], 2: [1, 2]})
    wanted: dict[int, list[int] | None] = {0: [1, 9], 1: [1, 1], 2: [3, 1], 7: [1, 2]}
    assert move(cluster.brokers[1], "clicks", wanted) == {
        0: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        2: ErrorCode.NONE,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert list(moving(cluster.brokers[1])) == [("clicks", 2)]
    assert move(cluster.brokers[1], "nothing", {0: [1]}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_partition_keeps_as_many_replicas_as_must_be_in_sync(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2, 3], 1: [1, 2, 3]}, min_insync_replicas="2")
    targets = {0: [1], 1: [1, 2]}
    assert move(cluster.brokers[2], "clicks", targets) == {0: ErrorCode.INVALID_REPLICA_ASSIGNMENT, 1: 0}


def test_another_number_of_replicas_can_be_forbidden(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2]})
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(cluster.brokers[1], "clicks", {0: [1, 2, 3]}, allow_replication_factor_change=False) == {0: code}
    assert move(cluster.brokers[1], "clicks", {0: [1, 2, 3]}) == {0: 0}


def test_two_brokers_that_move_the_same_topic_at_once_both_succeed(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2], 1: [1, 2]})
    cluster.timeline.run(0.5)
    row = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    pending = []
    for index, broker in enumerate((cluster.brokers[1], cluster.brokers[2])):
        part = row.ReassignableTopic.ReassignablePartition(partition_index=index, replicas=[3, 1])
        topics = [row.ReassignableTopic(name="clicks", partitions=[part])]
        message = row(timeout_ms=5_000, allow_replication_factor_change=True, topics=topics)
        pending.append((broker, broker.dispatch(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, bytes(message.encode(version=1)))))
    for broker, answer in pending:
        broker.bytes_of(answer)
    cluster.timeline.run(1)
    assert list(moving(cluster.brokers[3])) == [("clicks", 0), ("clicks", 1)]


def test_only_the_controller_elects(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", 1, 3)
    cluster.timeline.run(0.5)
    other = next(broker for broker in cluster.brokers.values() if broker is not controller(cluster))
    assert elect(other, PREFERRED, ("clicks", 0)) == (ErrorCode.NOT_CONTROLLER, {("clicks", 0): ErrorCode.NOT_CONTROLLER})
    assert elect(other, PREFERRED) == (ErrorCode.NOT_CONTROLLER, {})


def test_the_preferred_leader_is_given_the_lead_once_the_leader_hands_it_over(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2, 3]})
    create(cluster.brokers[1], "views", assignments={0: [2, 3]})
    cluster.timeline.run(0.5)
    store_state(cluster.brokers[1], "clicks", leader=2, leader_epoch=1)

    def hand_over() -> None:
        state = cluster.brokers[2].member.image.topics["clicks"].states[0]
        assert state.handover_to == 1
        store_state(cluster.brokers[2], "clicks", leader=1, leader_epoch=2, handover_to=None)

    cluster.timeline.after(3, hand_over)
    assert elect(controller(cluster), PREFERRED) == (0, {("clicks", 0): 0})
    assert elect(controller(cluster), PREFERRED, ("views", 0)) == (0, {("views", 0): ErrorCode.ELECTION_NOT_NEEDED})
    assert elect(controller(cluster), PREFERRED, ("views", 1))[1] == {("views", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_leader_that_does_not_hand_over_in_time_is_told_as_a_timeout(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2]})
    cluster.timeline.run(0.5)
    store_state(cluster.brokers[1], "clicks", leader=2, leader_epoch=1)
    codes = elect(controller(cluster), PREFERRED, ("clicks", 0), timeout_ms=1_000)
    assert codes == (0, {("clicks", 0): ErrorCode.REQUEST_TIMED_OUT})


def test_a_preferred_leader_that_is_behind_cannot_be_elected(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [1, 2]})
    cluster.timeline.run(0.5)
    store_state(cluster.brokers[1], "clicks", leader=2, leader_epoch=1, isr=(2,))
    codes = elect(controller(cluster), PREFERRED, ("clicks", 0))
    assert codes == (0, {("clicks", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})


def test_an_unclean_election_takes_whoever_is_there_where_nobody_leads(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", assignments={0: [3, 2]})
    create(cluster.brokers[1], "views", assignments={0: [3]})
    cluster.timeline.run(0.5)
    store_state(cluster.brokers[1], "clicks", isr=(3,))
    cluster.kill(3)
    cluster.timeline.run(10)
    one = controller(cluster)
    assert metadata(one, "clicks").partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert elect(one, UNCLEAN, ("clicks", 0), ("views", 0)) == (
        0,
        {("clicks", 0): 0, ("views", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE},
    )
    assert metadata(one, "clicks").partitions[0].leader_id == 2
    assert elect(one, UNCLEAN, ("clicks", 0))[1] == {("clicks", 0): ErrorCode.ELECTION_NOT_NEEDED}


def test_a_broker_alone_has_nothing_to_move_and_nobody_to_elect(alone: Harness) -> None:
    assert move(alone, "clicks", {0: [1], 1: None, 2: [1]}) == {
        0: ErrorCode.NONE,
        1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert move(alone, "clicks", {0: [2]}) == {0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert moving(alone) == {}
    assert elect(alone, PREFERRED, ("clicks", 0)) == (0, {("clicks", 0): ErrorCode.ELECTION_NOT_NEEDED})
    assert elect(alone, UNCLEAN) == (0, {})
    assert elect(alone, 7)[0] == ErrorCode.INVALID_REQUEST
