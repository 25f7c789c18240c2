"""What a broker answers clients about the cluster: on its own, and from the view of a cluster.

What one broker of a cluster answers clients, from its image.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.cluster.cluster_view import BrokerAddress, ImageView, LocalView, PartitionView
from logbus_broker.cluster.metadata_image import (
    NO_LEADER,
    BrokerNode,
    ClusterTopic,
    Controller,
    Endpoint,
    MetadataImage,
    PartitionState,
)
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC, Topic, partition_of_group
from logbus_broker.errors import CoordinatorNotAvailable, UnknownTopicOrPartition
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import encode_response, request_class, response_class
from logbus_broker.protocol.framing import Origin, Request
from logbus_broker.setting_parsers import Listener

from tests.support.engine import Harness


def ask(broker: Harness, api_key: ApiKey, version: int, listener: str = "", **values: Any) -> bytes:
    body = request_class(api_key)(**values)
    raw = memoryview(bytes(body.encode(version=version)))
    answer = broker.engine.dispatch(Request(int(api_key), version, 1, "test", raw, origin=Origin("10.0.0.1", listener)))
    return broker.bytes_of(answer)


def metadata(broker: Harness, version: int, listener: str = "") -> bytes:
    more = {"allow_auto_topic_creation": False} if version >= 4 else {}
    if version >= 8:
        more["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        more["include_cluster_authorized_operations"] = False
    return ask(broker, ApiKey.METADATA, version, listener, topics=None, **more)


@pytest.mark.parametrize("version", [1, 4, 8, 9, 12])
def test_the_metadata_of_a_broker_alone_names_it_for_everything(tmp_path: Path, version: int) -> None:
    """Byte for byte what clients of every version have received since the first release."""
    broker = Harness(tmp_path, broker_id=4)
    broker.create("clicks", 3)
    topic = broker.engine.partitions.registry.get("clicks")
    row = response_class(ApiKey.METADATA)
    expected = row(
        throttle_time_ms=0,
        brokers=[row.MetadataResponseBroker(node_id=4, host="127.0.0.1", port=9092, rack=None)],
        cluster_id=broker.engine.context.view.cluster_id,
        controller_id=4,
        topics=[
            row.MetadataResponseTopic(
                error_code=0,
                name="clicks",
                topic_id=topic.topic_id,
                is_internal=False,
                partitions=[
                    row.MetadataResponseTopic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=4,
                        leader_epoch=0,
                        replica_nodes=[4],
                        isr_nodes=[4],
                        offline_replicas=[],
                    )
                    for index in range(3)
                ],
            )
        ],
        error_code=0,
    )
    assert metadata(broker, version) == encode_response(expected, version)
    assert metadata(broker, version) == encode_response(expected, version), "from the cache"
    broker.close()


class TwoBrokers:
    """Broker 1 leads partition 0, partition 1 has no leader; broker 2 is gone. The group `lost` has no coordinator."""

    cluster_id = "the-cluster"
    controller_id = 1

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        return [BrokerAddress(1, f"{listener.lower()}.example", 9092, "rack-a")]

    def partitions(self, topic: Topic, indexes: Iterable[int]) -> list[PartitionView]:
        every = [PartitionView(1, 7, (1, 2), (1,), (2,), ()), PartitionView(NO_LEADER, 8, (2,), (2,), (2,), (1,))]
        return [every[index] for index in indexes]

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        if group_id == "lost":
            raise CoordinatorNotAvailable("its partition has no leader")
        return self.brokers(listener)[0]


def test_clients_are_told_the_view_of_many_brokers_with_the_addresses_of_their_listener(tmp_path: Path) -> None:
    broker = Harness(tmp_path, view=TwoBrokers())
    broker.create("clicks", 2)
    for listener in ("INSIDE", "OUTSIDE", "INSIDE"):  # what is cached for one listener is not returned to the other
        answer = response_class(ApiKey.METADATA).decode(metadata(broker, 9, listener), version=9)
        (node,) = answer.brokers
        assert (node.node_id, node.host, node.rack) == (1, f"{listener.lower()}.example", "rack-a")
        assert (answer.cluster_id, answer.controller_id) == ("the-cluster", 1)
        first, second = answer.topics[0].partitions
        assert (first.error_code, first.leader_id, first.leader_epoch) == (0, 1, 7)
        assert (list(first.replica_nodes), list(first.isr_nodes), list(first.offline_replicas)) == ([1, 2], [1], [2])
        assert (second.error_code, second.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)
    broker.close()


def test_every_other_question_asks_the_same_view(tmp_path: Path) -> None:
    broker = Harness(tmp_path, view=TwoBrokers())
    broker.create("clicks", 2)
    row = request_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    raw = ask(
        broker,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[row.TopicRequest(name="clicks")],
        response_partition_limit=10,
        cursor=None,
    )
    described = response_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS).decode(raw, version=0).topics[0].partitions
    assert [(row.leader_id, list(row.eligible_leader_replicas)) for row in described] == [(1, []), (NO_LEADER, [1])]
    raw = ask(broker, ApiKey.DESCRIBE_CLUSTER, 0, "INSIDE", include_cluster_authorized_operations=False)
    cluster = response_class(ApiKey.DESCRIBE_CLUSTER).decode(raw, version=0)
    assert (cluster.cluster_id, [broker.host for broker in cluster.brokers]) == ("the-cluster", ["inside.example"])
    raw = ask(broker, ApiKey.FIND_COORDINATOR, 4, "INSIDE", key_type=0, coordinator_keys=["g", "lost"])
    coordinator, lost = response_class(ApiKey.FIND_COORDINATOR).decode(raw, version=4).coordinators
    assert (coordinator.error_code, coordinator.node_id, coordinator.host) == (0, 1, "inside.example")
    assert (lost.error_code, lost.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    broker.close()


def test_a_broker_alone_tells_each_listener_its_own_address_and_any_other_the_first() -> None:
    view = LocalView(
        broker_id=3,
        cluster_id="c",
        advertised={
            "INSIDE": Listener(name="INSIDE", host="10.0.0.1", port=1),
            "OUTSIDE": Listener(name="OUTSIDE", host="public.example", port=2),
        },
        leader_epoch=lambda topic, index: 5,
    )
    assert view.brokers("OUTSIDE") == (BrokerAddress(3, "public.example", 2),)
    assert view.brokers("") == view.brokers("INSIDE") == (BrokerAddress(3, "10.0.0.1", 1),)
    assert view.coordinator("g", "OUTSIDE").port == 2
    assert view.controller_id == 3


def node(broker_id: int, **listeners: int) -> BrokerNode:
    endpoints = {name: Endpoint(host=f"host{broker_id}", port=port) for name, port in listeners.items()}
    return BrokerNode(broker_id=broker_id, incarnation=0, endpoints=endpoints, rack="a" if broker_id == 1 else "")


def state(leader: int, *isr: int, eligible: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader=leader, leader_epoch=7, isr=isr, version=0, eligible=eligible)


CLICKS = ClusterTopic(
    name="clicks",
    topic_id=uuid.UUID(int=1),
    replicas=((1, 2, 3), (2, 3, 1)),
    states=(state(1, 1, 2), state(3, 3, eligible=(1,))),
    version=0,
)
OFFSETS = ClusterTopic(
    name=OFFSETS_TOPIC,
    topic_id=uuid.UUID(int=2),
    replicas=((1,), (2,), (3,)),
    states=(state(1, 1), state(2, 2), state(3, 3)),
    version=0,
)
IMAGE = MetadataImage(
    cluster_id="c1",
    brokers={2: node(2, PLAINTEXT=9092, INSIDE=9192), 1: node(1, PLAINTEXT=9091)},
    controller=Controller(broker_id=2, epoch=1),
    topics={"clicks": CLICKS, OFFSETS_TOPIC: OFFSETS},
)


def view_of(image: MetadataImage) -> ImageView:
    return ImageView(lambda: image)


def topic(of: ClusterTopic) -> Topic:
    return Topic(name=of.name, topic_id=of.topic_id, partition_count=of.partition_count)


def test_brokers_are_told_in_the_order_of_their_ids_with_their_racks() -> None:
    assert view_of(IMAGE).brokers("PLAINTEXT") == [BrokerAddress(1, "host1", 9091, "a"), BrokerAddress(2, "host2", 9092, None)]


def test_a_broker_without_the_listener_of_the_question_is_left_out() -> None:
    assert view_of(IMAGE).brokers("INSIDE") == [BrokerAddress(2, "host2", 9192, None)]


def test_the_controller_is_told_while_it_is_there() -> None:
    assert view_of(IMAGE).controller_id == 2
    assert view_of(replace(IMAGE, brokers={1: IMAGE.brokers[1]})).controller_id == -1


def test_a_leader_that_is_not_registered_is_shown_as_none() -> None:
    first, second = view_of(IMAGE).partitions(topic(CLICKS), [0, 1])
    assert (first.leader, first.leader_epoch, first.isr, first.offline) == (1, 7, (1, 2), [3])
    assert (second.leader, second.offline, second.eligible) == (NO_LEADER, [3], (1,))


def test_a_topic_made_again_is_not_the_one_that_was_asked_for() -> None:
    again = replace(CLICKS, topic_id=uuid.UUID(int=9))
    with pytest.raises(UnknownTopicOrPartition):
        view_of(replace(IMAGE, topics={"clicks": again})).partitions(topic(CLICKS), [0])


def test_the_leader_of_its_partition_coordinates_a_group() -> None:
    groups = {partition_of_group(group, 3): group for group in map(str, range(9))}
    assert view_of(IMAGE).coordinator(groups[0], "PLAINTEXT").broker_id == 1
    assert view_of(IMAGE).coordinator(groups[1], "PLAINTEXT").broker_id == 2
    with pytest.raises(CoordinatorNotAvailable):
        view_of(IMAGE).coordinator(groups[2], "PLAINTEXT")


def test_no_group_is_coordinated_before_the_topic_of_the_offsets_is_made() -> None:
    with pytest.raises(CoordinatorNotAvailable):
        view_of(replace(IMAGE, topics={})).coordinator("g", "PLAINTEXT")


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0),
        ("a", 47),
        ("console-consumer", 40),
        ("hourly-clicks", 49),
        ("gruppe-äöü", 40),
        ("\U0001f600", 49),  # two UTF-16 code units
        ("polygenelubricants", 0),  # its hash is the smallest integer
    ],
)
def test_a_groups_partition_is_that_of_javas_hash(group: str, partition: int) -> None:
    """The expected values come from a Java program."""
    assert partition_of_group(group, 50) == partition
