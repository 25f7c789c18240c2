"""A broker asked for a partition that another one leads returns the leader (KIP-951), to clients that know the fields."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.clustered import ClusteredBroker, ClusterOfBrokers
from tests.support.engine import batch
from tests.support.kio_messages import read_response
from tests.support.wire import produce_body
from tests.unit.broker.api.test_cluster_topics import create

PRODUCE_VERSIONS = range(9, APIS[ApiKey.PRODUCE].last + 1)  # their requests have the same bytes
FETCH_VERSIONS = range(12, APIS[ApiKey.FETCH].last + 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    cluster = ClusterOfBrokers(tmp_path)
    create(cluster.brokers[1], "clicks", assignments={0: [2, 3], 1: [3, 2], 2: [1, 2]})
    cluster.timeline.run(0.5)
    yield cluster
    cluster.close()


def produced(broker: ClusteredBroker, version: int, *indexes: int) -> Any:
    body = produce_body({("clicks", index): batch(b"a") for index in indexes})
    return read_response(ApiKey.PRODUCE, version, broker.bytes_of(broker.dispatch(ApiKey.PRODUCE, version, body)))


def fetched(broker: ClusteredBroker, version: int, *indexes: int) -> Any:
    row = request_class(ApiKey.FETCH).FetchTopic
    parts = [row.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in indexes]
    topic_id = broker.engine.partitions.registry.get("clicks").topic_id
    topic = row(topic_id=topic_id, partitions=parts) if version >= 13 else row(topic="clicks", partitions=parts)
    asked = request_class(ApiKey.FETCH)(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    answer = broker.dispatch(ApiKey.FETCH, version, bytes(asked.encode(version=version)))
    return read_response(ApiKey.FETCH, version, broker.bytes_of(answer))


def nodes(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_producer_is_told_who_leads_and_where(cluster: ClusterOfBrokers, version: int) -> None:
    answer = produced(cluster.brokers[1], version, 0)
    (part,) = answer.responses[0].partition_responses
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 0)
        assert nodes(answer) == [(2, "host2", 9092, None)]


def test_each_broker_is_named_once_and_one_that_only_has_to_begin_is_not(cluster: ClusterOfBrokers) -> None:
    answer = produced(cluster.brokers[1], 12, 0, 1, 2)
    leaders = [part.current_leader.leader_id for topic in answer.responses for part in topic.partition_responses]
    assert leaders == [2, 3, -1]
    assert [node[0] for node in nodes(answer)] == [2, 3]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_consumer_is_told_who_leads_and_where_or_neither(cluster: ClusterOfBrokers, version: int) -> None:
    answer = fetched(cluster.brokers[1], version, 0, 1, 2)
    parts = answer.responses[0].partitions
    assert [part.error_code for part in parts] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    if version >= 16:
        assert [part.current_leader.leader_id for part in parts] == [2, 3, -1]
        assert [node[0] for node in nodes(answer)] == [2, 3]
    else:  # without its address: kafka-python then asked a broker that it did not know, and never again one of that number
        assert [part.current_leader.leader_id for part in parts] == [-1, -1, -1]


def test_a_leader_that_is_not_there_is_no_hint(cluster: ClusterOfBrokers) -> None:
    image = cluster.brokers[1].member.watcher.image
    del image.brokers[3]  # type: ignore[attr-defined]
    answer = produced(cluster.brokers[1], 12, 1)
    assert answer.responses[0].partition_responses[0].current_leader.leader_id == -1
    assert nodes(answer) == []


def test_a_topic_that_is_not_there_has_no_leader(cluster: ClusterOfBrokers) -> None:
    row = request_class(ApiKey.FETCH).FetchTopic
    part = row.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [row(topic_id=uuid.UUID(int=77), partitions=[part])]
    asked = request_class(ApiKey.FETCH)(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    broker = cluster.brokers[1]
    raw = broker.bytes_of(broker.dispatch(ApiKey.FETCH, 17, bytes(asked.encode(version=17))))
    (part,) = read_response(ApiKey.FETCH, 17, raw).responses[0].partitions
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert part.current_leader.leader_id == -1
