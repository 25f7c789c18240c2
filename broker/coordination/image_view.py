"""What a broker in a cluster reports to clients about the cluster: the view over the image.

A leader that is not registered is shown as no leader: clients ask again instead of connecting to a broker that is down. The image
may still name it until the controller has elected another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.coordination.image import NO_LEADER, BrokerNode, ClusterTopic, Image, PartitionState
from broker.coordination.local import Topic
from broker.coordination.view import BrokerAddress, PartitionView
from broker.coordination.znodes import NO_STATE
from broker.errors import CoordinatorNotAvailable, UnknownTopicOrPartition


class ImageView:
    """A `ClusterView` of the image as it is at each call."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    @property
    def cluster_id(self) -> str:
        return self._image().cluster_id

    @property
    def controller_id(self) -> int:
        """-1 if the controller is no longer registered: clients could not reach it."""
        image = self._image()
        return image.controller.broker_id if image.controller.broker_id in image.brokers else -1

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """Those that have the listener: addresses on other listeners may be out of this client's reach."""
        found = (_address(node, listener) for _, node in sorted(self._image().brokers.items()))
        return [address for address in found if address is not None]

    def _broker(self, broker_id: int, listener: str) -> BrokerAddress | None:
        """The address of one broker; None: it is not registered, or does not have this listener."""
        node = self._image().brokers.get(broker_id)
        return None if node is None else _address(node, listener)

    def partitions(self, topic: Topic, indexes: Iterable[int]) -> list[PartitionView]:
        image = self._image()
        known = image.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            raise UnknownTopicOrPartition(f"no topic {topic.name!r}")
        return [_partition(known, index, image) for index in indexes]

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        image = self._image()
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} is not made yet: ask again")
        index = partition_of_group(group_id, topic.partition_count)
        address = self._broker(_state(topic, index).leader, listener)
        if address is None:
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC}-{index} has no leader just now: ask again")
        return address


def _address(node: BrokerNode, listener: str) -> BrokerAddress | None:
    endpoint = node.endpoints.get(listener)
    return None if endpoint is None else BrokerAddress(node.broker_id, endpoint.host, endpoint.port, node.rack or None)


def _state(topic: ClusterTopic, index: int) -> PartitionState:
    return topic.states[index] if index < len(topic.states) else NO_STATE


def _partition(topic: ClusterTopic, index: int, image: Image) -> PartitionView:
    state, replicas = _state(topic, index), topic.replicas[index]
    return PartitionView(
        leader=state.leader if state.leader in image.brokers else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replicas=replicas,
        isr=state.isr,
        offline=[broker for broker in replicas if broker not in image.brokers],
        eligible=state.eligible,
        adding=topic.adding.get(index, ()),
        removing=topic.removing.get(index, ()),
    )
