"""What one broker of many tells clients about the cluster: the view over the image.

A leader that is not registered is shown as none: clients ask again, instead of connecting to what is not there. The image may
still name it until the controller has elected another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.coordination.image import BrokerNode, ClusterTopic, Image, PartitionState
from broker.coordination.local import Topic
from broker.coordination.view import NO_LEADER, BrokerAddress, PartitionView
from broker.coordination.znodes import NO_STATE
from broker.errors import CoordinatorNotAvailable, UnknownTopicOrPartition


class ImageView:
    """A `ClusterView` of the image as it is whenever somebody asks."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    @property
    def cluster_id(self) -> str:
        return self._image().cluster_id

    @property
    def controller_id(self) -> int:
        """One that is not registered any more is nobody to ask."""
        image = self._image()
        return image.controller.broker_id if image.controller.broker_id in image.brokers else -1

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """Those that have the listener: what the others advertise elsewhere may be out of reach for who asks here."""
        found = (_address(node, listener) for _, node in sorted(self._image().brokers.items()))
        return [address for address in found if address is not None]

    def _broker(self, broker_id: int, listener: str) -> BrokerAddress | None:
        """Where one broker is reached; None: it is not there, or not on this listener."""
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
