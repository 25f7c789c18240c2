"""A coordinator of groups that was stopped until another was elected."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from logbus.waiting import wait_until
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC, partition_of_group
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class

from tests.support.clusters import RunningCluster
from tests.support.group_client import encode
from tests.support.ordeal import create_replicated
from tests.support.raw_client import RawClient
from tests.support.zookeeper import RunningZooKeeper

GROUP = "movers"
TOPIC = "moved"
OFFSET_FETCH_VERSION = 9


@pytest.mark.long
def test_a_coordinator_that_was_stopped_does_not_answer_from_memory(zookeeper: RunningZooKeeper, tmp_path: Path) -> None:
    """The request is already in its socket when it resumes, and one minute is long enough to trust its leadership."""
    with RunningCluster(tmp_path, zookeeper, chroot="/stopped", settings={"logbus.leader.confirm.ms": "60000"}) as cluster:
        create_replicated(cluster, TOPIC, 1)
        commit(cluster, {0: 1})
        place = partition_of_group(GROUP, len(cluster.assignment(OFFSETS_TOPIC)))
        cluster.wait_until_healed(TOPIC, OFFSETS_TOPIC)
        stopped = cluster.state(OFFSETS_TOPIC, place).leader
        with RawClient(cluster.brokers[stopped].bootstrap) as asking:
            cluster.brokers[stopped].pause()
            commit(cluster, {0: 2})
            assert cluster.state(OFFSETS_TOPIC, place).leader != stopped
            ask_what_is_committed(asking)
            cluster.brokers[stopped].resume()
            assert told(asking) != (0, 1)


def ask_what_is_committed(connection: RawClient) -> None:
    row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    topics = [row.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
    asked = row(group_id=GROUP, member_id=None, member_epoch=-1, topics=topics)
    body = encode(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, {"groups": [asked], "require_stable": True})
    connection.send_request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, body, flexible=True)


def told(connection: RawClient) -> tuple[int, int | None]:
    """The error, and the offset."""
    raw = connection.receive_frame()[5:]
    (group,) = response_class(ApiKey.OFFSET_FETCH).decode(raw, version=OFFSET_FETCH_VERSION).groups
    return group.error_code, group.topics[0].partitions[0].committed_offset if group.topics else None


def commit(cluster: RunningCluster, offsets: dict[int, int]) -> None:
    """Commit from outside the group, until it is acknowledged."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    places = [TopicPartition(TOPIC, partition, offset) for partition, offset in offsets.items()]
    wait_until(lambda: consumer.commit(offsets=places, asynchronous=False), what="the group coordinator", not_yet=KafkaException)
    consumer.close()
