"""What one broker of a cluster answers clients, from its image."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.coordination.image import NO_LEADER, BrokerNode, ClusterTopic, Controller, Endpoint, Image, PartitionState
from broker.coordination.image_view import ImageView
from broker.coordination.local import Topic
from broker.coordination.view import BrokerAddress
from broker.errors import CoordinatorNotAvailable, UnknownTopicOrPartition


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
IMAGE = Image(
    cluster_id="c1",
    brokers={2: node(2, PLAINTEXT=9092, INSIDE=9192), 1: node(1, PLAINTEXT=9091)},
    controller=Controller(broker_id=2, epoch=1),
    topics={"clicks": CLICKS, OFFSETS_TOPIC: OFFSETS},
)


def view_of(image: Image) -> ImageView:
    return ImageView(lambda: image)


def topic(of: ClusterTopic) -> Topic:
    return Topic(name=of.name, topic_id=of.topic_id, partition_count=of.partition_count)


def test_brokers_are_told_in_the_order_of_their_ids_with_their_racks() -> None:
    assert view_of(IMAGE).brokers("PLAINTEXT") == [
        BrokerAddress(1, "host1", 9091, "a"),
        BrokerAddress(2, "host2", 9092, None),
    ]


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
