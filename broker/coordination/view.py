"""What a broker reports to clients about the cluster: which brokers are live, which lead what, which coordinates a group.

Handlers use this instead of assuming "me", so they are the same whether a single broker answers from its own topics (`LocalView`)
or one of a cluster from the image. Every answer is current; it may be out of date when the client gets it, and the client asks
again on NOT_LEADER_OR_FOLLOWER. Addresses are those of the listener on which the client is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.config.listeners import Listener
from broker.coordination.local import Topic


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

    def partitions(self, topic: Topic, indexes: Iterable[int]) -> list[PartitionView]:
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
        self._brokers = {name: (BrokerAddress(broker_id, one.host, one.port),) for name, one in advertised.items()}
        self._usual = next(iter(self._brokers.values()))

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        return self._brokers.get(listener, self._usual)

    def partitions(self, topic: Topic, indexes: Iterable[int]) -> list[PartitionView]:
        me, (leader,) = self._me, self._me
        return [PartitionView(leader, self._leader_epoch(topic.name, index), me, me) for index in indexes]

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        return self.brokers(listener)[0]
