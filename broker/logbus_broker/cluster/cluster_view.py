"""What a broker reports to clients about the cluster: which brokers are live, which lead what, which coordinates a group.

Handlers use this instead of assuming "me", so they are the same whether a single broker answers from its own topics (`LocalView`)
or one of a cluster from the metadata image (`ImageView`). Every answer is current; it may be out of date when the client gets it,
and the client asks again on NOT_LEADER_OR_FOLLOWER. Addresses are those of the listener on which the client is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from logbus_broker.cluster import metadata_image, topic_registry
from logbus_broker.errors import CoordinatorNotAvailable, UnknownTopicOrPartition
from logbus_broker.setting_parsers import Listener


class BrokerAddress(NamedTuple):
    """The address at which clients reach a broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionView(NamedTuple):
    """The replicas of a partition; `leader` is NO_LEADER if there is none. `offline` are replicas whose broker is not registered,
    `eligible` those that may lead although they are not in sync (KIP-966), `adding` and `removing` those of a reassignment in
    progress."""

    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] = ()
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()


class ClusterView(Protocol):
    """See the module docstring."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def controller_id(self) -> int:
        """-1: there is currently none."""

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """All that can be reached, ordered by id."""

    def partitions(self, topic: topic_registry.Topic, indexes: Iterable[int]) -> list[PartitionView]:
        """UnknownTopicOrPartition: the topic was deleted in the meantime."""

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        """The broker that coordinates a group; CoordinatorNotAvailable if there is currently none."""


class LocalView:
    """The view of a single broker: it leads everything, and coordinates every group."""

    def __init__(
        self, *, broker_id: int, cluster_id: str, advertised: Mapping[str, Listener], leader_epoch: Callable[[str, int], int]
    ) -> None:
        """`advertised` is the address reported to clients of each listener, the first one to those of any other;
        `leader_epoch` returns that of a partition, or raises UnknownTopicOrPartition."""
        self.cluster_id = cluster_id
        self.controller_id = broker_id
        self._leader_epoch = leader_epoch
        self._me = (broker_id,)
        self._brokers = {name: (BrokerAddress(broker_id, listener.host, listener.port),) for name, listener in advertised.items()}
        self._usual = next(iter(self._brokers.values()))

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        return self._brokers.get(listener, self._usual)

    def partitions(self, topic: topic_registry.Topic, indexes: Iterable[int]) -> list[PartitionView]:
        me, (leader,) = self._me, self._me
        return [PartitionView(leader, self._leader_epoch(topic.name, index), me, me) for index in indexes]

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        return self.brokers(listener)[0]


class ImageView:
    """A `ClusterView` of the image as it is at each call.

    A leader that is not registered is shown as no leader: clients ask again instead of connecting to a broker that is down. The
    image may still name it until the controller has elected another."""

    def __init__(self, image: Callable[[], metadata_image.MetadataImage]) -> None:
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
        addresses = (_address(node, listener) for _, node in sorted(self._image().brokers.items()))
        return [address for address in addresses if address is not None]

    def partitions(self, topic: topic_registry.Topic, indexes: Iterable[int]) -> list[PartitionView]:
        image = self._image()
        cluster_topic = image.topics.get(topic.name)
        if cluster_topic is None or cluster_topic.topic_id != topic.topic_id:
            raise UnknownTopicOrPartition(f"no topic {topic.name!r}")
        return [_partition(cluster_topic, index, image) for index in indexes]

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        image = self._image()
        topic = image.topics.get(topic_registry.OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable(f"{topic_registry.OFFSETS_TOPIC} has not been created yet: retry")
        index = topic_registry.partition_of_group(group_id, topic.partition_count)
        leader = image.brokers.get(_state(topic, index).leader)
        address = None if leader is None else _address(leader, listener)
        if address is None:
            raise CoordinatorNotAvailable(f"{topic_registry.OFFSETS_TOPIC}-{index} has no leader at the moment: retry")
        return address


def _address(node: metadata_image.BrokerNode, listener: str) -> BrokerAddress | None:
    endpoint = node.endpoints.get(listener)
    return None if endpoint is None else BrokerAddress(node.broker_id, endpoint.host, endpoint.port, node.rack or None)


def _state(topic: metadata_image.ClusterTopic, index: int) -> metadata_image.PartitionState:
    return topic.states[index] if index < len(topic.states) else metadata_image.NO_STATE


def _partition(topic: metadata_image.ClusterTopic, index: int, image: metadata_image.MetadataImage) -> PartitionView:
    state, replicas = _state(topic, index), topic.replicas[index]
    return PartitionView(
        leader=state.leader if state.leader in image.brokers else metadata_image.NO_LEADER,
        leader_epoch=state.leader_epoch,
        replicas=replicas,
        isr=state.isr,
        offline=[broker for broker in replicas if broker not in image.brokers],
        eligible=state.eligible,
        adding=topic.adding.get(index, ()),
        removing=topic.removing.get(index, ()),
    )
