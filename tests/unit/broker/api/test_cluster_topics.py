"""Topics and settings of a cluster, requested from any of its brokers, over the simulated ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.settings import LogConfig

from tests.support import admin
from tests.support.admin import grow
from tests.support.clustered import ClusteredBroker, ClusterOfBrokers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    cluster = ClusterOfBrokers(tmp_path, default_replication_factor=2, num_partitions=4)
    yield cluster
    cluster.close()


def create(
    broker: ClusteredBroker,
    name: str,
    partitions: int = -1,
    factor: int = -1,
    *,
    assignments: dict[int, list[int]] | None = None,
    validate_only: bool = False,
    timeout_ms: int = 5_000,
    **configs: str,
) -> Any:
    topic = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    asked = topic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            topic.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[topic.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    (row,) = broker.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], timeout_ms=timeout_ms, validate_only=validate_only).topics
    return row


def metadata(broker: ClusteredBroker, name: str, *, creates: bool = False) -> Any:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic(name=name, topic_id=None)
    (topic,) = broker.ask(ApiKey.METADATA, 12, topics=[row], allow_auto_topic_creation=creates).topics
    return topic


def alter(broker: ClusteredBroker, kind: int, resource: str, name: str, value: str | None) -> int:
    return admin.alter(broker, kind, resource, (name, admin.DELETE if value is None else admin.SET, value))[0]


def described(broker: ClusteredBroker, kind: int, resource: str, name: str) -> str:
    return str(admin.setting(broker, kind, resource, name).value)


def test_a_topic_made_at_one_broker_is_known_to_all_with_a_leader_for_each_partition(cluster: ClusterOfBrokers) -> None:
    row = create(cluster.brokers[2], "clicks", retention_ms="77")
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 4, 2)
    cluster.timeline.run(0.5)
    for broker in cluster.brokers.values():
        topic = metadata(broker, "clicks")
        assert topic.topic_id == row.topic_id
        assert [len(part.replica_nodes) for part in topic.partitions] == [2] * 4
        assert [part.leader_id for part in topic.partitions] == [part.replica_nodes[0] for part in topic.partitions]
        assert described(broker, 2, "clicks", "retention.ms") == "77"


def test_assignments_by_hand_are_kept(cluster: ClusterOfBrokers) -> None:
    row = create(cluster.brokers[1], "clicks", assignments={0: [3, 1], 1: [2, 3]})
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 2, 2)
    assert [part.replica_nodes for part in metadata(cluster.brokers[1], "clicks").partitions] == [[3, 1], [2, 3]]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 20_000}, ErrorCode.INVALID_PARTITIONS),
        ({"factor": 2, "min_insync_replicas": "3"}, ErrorCode.INVALID_CONFIG),
        ({"retention_ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ({"assignments": {0: [9]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1], 1: [1, 2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(cluster: ClusterOfBrokers, values: Any, code: ErrorCode) -> None:
    for validate_only in (True, False):
        assert create(cluster.brokers[1], "clicks", **values, validate_only=validate_only).error_code == code
    assert not cluster.brokers[1].member.image.topics


def test_validating_makes_nothing(cluster: ClusterOfBrokers) -> None:
    row = create(cluster.brokers[1], "clicks", validate_only=True)
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 4, 2)
    assert not cluster.brokers[1].member.image.topics


def test_a_name_is_given_once_whoever_asks_where(cluster: ClusterOfBrokers) -> None:
    assert create(cluster.brokers[1], "clicks").error_code == 0
    assert create(cluster.brokers[2], "clicks").error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_question_for_metadata_makes_a_topic_with_the_usual_replicas(cluster: ClusterOfBrokers) -> None:
    topic = metadata(cluster.brokers[3], "clicks", creates=True)
    assert topic.error_code == 0
    assert [len(part.replica_nodes) for part in topic.partitions] == [2] * 4


def test_a_topic_grows_at_any_broker(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", 2, 2)
    cluster.timeline.run(0.5)
    assert grow(cluster.brokers[2], "clicks", 5) == (0, None)
    assert grow(cluster.brokers[2], "clicks", 6, assignments=[[3, 2]]) == (0, None)
    assert [len(part.replica_nodes) for part in metadata(cluster.brokers[2], "clicks").partitions] == [2] * 6
    for count, assignments, code in (
        (6, None, ErrorCode.INVALID_PARTITIONS),
        (7, [[3]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (8, [[3, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ):
        assert grow(cluster.brokers[2], "clicks", count, assignments=assignments)[0] == code


def test_a_deleted_topic_is_gone_when_the_answer_comes_and_its_name_is_free(cluster: ClusterOfBrokers) -> None:
    first = create(cluster.brokers[1], "clicks")
    cluster.timeline.run(0.5)
    assert cluster.brokers[2].delete("clicks").error_code == 0
    assert metadata(cluster.brokers[2], "clicks").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = create(cluster.brokers[2], "clicks")
    assert again.error_code == 0
    assert again.topic_id != first.topic_id


def test_settings_changed_at_one_broker_hold_for_all(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", retention_bytes="5")
    cluster.timeline.run(0.5)
    assert alter(cluster.brokers[2], 2, "clicks", "retention.ms", "99") == 0
    assert described(cluster.brokers[2], 2, "clicks", "retention.ms") == "99"
    cluster.timeline.run(0.5)
    assert described(cluster.brokers[3], 2, "clicks", "retention.ms") == "99"
    assert described(cluster.brokers[3], 2, "clicks", "retention.bytes") == "5"
    assert alter(cluster.brokers[3], 2, "clicks", "retention.ms", None) == 0
    assert described(cluster.brokers[3], 2, "clicks", "retention.ms") == str(LogConfig().retention_ms)


def test_more_replicas_in_sync_than_a_topic_has_are_refused(cluster: ClusterOfBrokers) -> None:
    create(cluster.brokers[1], "clicks", factor=2)
    assert alter(cluster.brokers[1], 2, "clicks", "min.insync.replicas", "3") == ErrorCode.INVALID_CONFIG
    assert alter(cluster.brokers[1], 2, "clicks", "min.insync.replicas", "2") == 0


def test_a_brokers_own_settings_come_before_those_of_all(cluster: ClusterOfBrokers) -> None:
    first, second = cluster.brokers[1], cluster.brokers[2]
    create(first, "clicks")
    assert alter(first, 4, "", "log.retention.ms", "50") == 0
    assert alter(second, 4, "2", "log.retention.ms", "60") == 0
    assert alter(first, 4, "2", "log.retention.ms", "60") == ErrorCode.INVALID_REQUEST
    cluster.timeline.run(0.5)
    assert described(first, 2, "clicks", "retention.ms") == "50"
    assert described(second, 2, "clicks", "retention.ms") == "60"
    assert second.engine.partitions.settings.of_topic({}).retention_ms == 60
    assert alter(second, 4, "", "log.retention.ms", "never") == ErrorCode.INVALID_CONFIG


def test_every_broker_is_listed_as_having_settings(cluster: ClusterOfBrokers) -> None:
    found = cluster.brokers[2].ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[4]).config_resources
    assert [row.resource_name for row in found] == ["1", "2", "3"]


def test_what_zookeeper_does_not_answer_in_time_is_said_so(cluster: ClusterOfBrokers) -> None:
    broker = cluster.brokers[1]
    broker.store.cut()
    assert create(broker, "clicks", timeout_ms=500).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_broker_that_has_lost_zookeeper_for_a_session_knows_no_controller(cluster: ClusterOfBrokers) -> None:
    broker = cluster.brokers[1]

    def controllers() -> tuple[int, int]:
        described = broker.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
        return described.controller_id, broker.ask(ApiKey.METADATA, 12, topics=[]).controller_id

    before = controllers()
    assert before[0] in cluster.brokers
    broker.member.away_since = broker.clock.monotonic()
    broker.clock.advance_ms(1_000)
    assert controllers() == before
    broker.clock.advance_ms(60_000)
    assert controllers() == (-1, before[1])


def test_the_topic_of_the_offsets_waits_for_as_many_brokers_as_it_is_to_have_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ClusterOfBrokers(tmp_path, 2, offsets_partitions=5)
    (row,) = cluster.brokers[1].ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["hourly"]).coordinators
    cluster.brokers[1].settle()
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "offsets.topic.replication.factor=3 needs as many live brokers, not 2" in caplog.text
    assert metadata(cluster.brokers[1], OFFSETS_TOPIC, creates=True).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.start(3)
    assert [len(part.replica_nodes) for part in metadata(cluster.brokers[1], OFFSETS_TOPIC, creates=True).partitions] == [3] * 5
    cluster.close()


def test_the_first_group_has_the_topic_of_the_offsets_made_and_finds_its_coordinator_at_any_broker(tmp_path: Path) -> None:
    cluster = ClusterOfBrokers(tmp_path, offsets_partitions=5)

    def asked(broker: ClusteredBroker) -> tuple[int, int]:
        (row,) = broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["hourly"]).coordinators
        return row.error_code, row.node_id

    for broker in cluster.brokers.values():
        assert asked(broker) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    for _ in range(10):
        cluster.timeline.run(0.2)
        for broker in cluster.brokers.values():
            broker.settle()
    found = {asked(broker) for broker in cluster.brokers.values()}
    assert len(found) == 1
    ((code, node_id),) = found
    assert code == 0
    assert node_id in cluster.brokers
    cluster.close()
