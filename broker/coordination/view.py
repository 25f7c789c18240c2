"""What a broker tells clients about the cluster: who is there, who leads what, who coordinates a group.

Handlers ask this instead of "me", so they are the same whether one broker answers from its own topics (`LocalView`) or one of
many from the image. Every answer is as of now; what is told to clients may be old when it arrives, and they ask again when a
broker says NOT_LEADER_OR_FOLLOWER. Addresses are those of the listener that the client has asked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.config.listeners import Listener
from broker.coordination.local import Topic

NO_LEADER = -1


class BrokerAddress(NamedTuple):
    """Where clients reach a broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionView(NamedTuple):
    """Who has a partition; `leader` is NO_LEADER where nobody leads. `offline` are replicas whose broker is not there, `eligible`
    those that may lead although they are not in the in-sync set (KIP-966), `adding` and `removing` those of a reassignment under
    way."""

    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] = ()
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()


class ClusterView(Protocol):
    """See the file's theory."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def controller_id(self) -> int:
        """-1: there is none just now."""

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """All that can be reached, in the order of their ids."""

    def partitions(self, topic: Topic, indexes: Iterable[int]) -> list[PartitionView]:
        """UnknownTopicOrPartition: the topic was deleted meanwhile."""

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        """The broker that coordinates a group; CoordinatorNotAvailable where nobody does just now."""


class LocalView:
    """The view of a broker that is alone: it leads everything, and coordinates every group."""

    def __init__(
        self, *, broker_id: int, cluster_id: str, advertised: Mapping[str, Listener], leader_epoch: Callable[[str, int], int]
    ) -> None:
        """`advertised` is what clients of each listener are told, the first one being told to those of any other;
        `leader_epoch` that of a partition, or UnknownTopicOrPartition."""
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
