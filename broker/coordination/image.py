"""What the brokers of a cluster agree on, as frozen values: which brokers and topics exist, which broker leads what.

ZooKeeper is authoritative, and this is a copy of it in the memory of every broker: decisions are pure functions of an image, and
brokers act on the states they see here, never on commands. A value carries the version of the znode it was read from, since every
write is conditional on the version that its writer has read.

Nothing here does I/O. `znodes.py` turns these values into Kafka's JSON and back, `follow.py` keeps an image up to date.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

NO_LEADER = -1
NO_CONTROLLER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of one listener of a broker."""

    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A registered broker: its ephemeral znode exists. `incarnation` counts the processes that had this id; each raises it."""

    broker_id: int
    incarnation: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str = ""
    directory_id: str = ""  # of its data directory: shows whether a registration is our own predecessor's


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Kafka's state znode of one partition, with our additions.

    `version` is the znode's: Kafka's partition epoch. The in-sync set (`isr`) is never empty and a subset of the replicas.
    `eligible` are those that left the set when that made it smaller than min.insync.replicas (KIP-966's eligible leader
    replicas): they have everything acknowledged or visible. `handover_to` asks the leader to hand over to that broker once it
    has everything. `is_recovering` follows an unclean election: followers may truncate below what was visible. `is_lost`: the log
    of the set's only member is gone. It stays listed, since no other broker has everything it had, but it must not lead."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    controller_epoch: int = 0
    eligible: tuple[int, ...] = ()
    handover_to: int | None = None
    is_recovering: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    """A topic: for each partition its replicas in order of preference and its state. `adding` and `removing` are those of a
    reassignment in progress, by partition. The id is never that of an earlier topic of the same name."""

    name: str
    topic_id: uuid.UUID
    replicas: tuple[tuple[int, ...], ...]
    states: tuple[PartitionState, ...]
    version: int
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        return len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The overrides of one topic or broker, as its /config znode holds them."""

    values: Mapping[str, str]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Which broker is the controller, and in which epoch."""

    broker_id: int = NO_CONTROLLER
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The complete state, as of the journal entry `position`."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerNode] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)  # of every broker that ever existed, live or not
    controller: Controller = field(default_factory=Controller)
    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    topic_settings: Mapping[str, Settings] = field(default_factory=dict)
    broker_settings: Mapping[str, Settings] = field(default_factory=dict)  # by broker id, "<default>" for all
    deleting: frozenset[str] = frozenset()  # topics marked for deletion
    leaving: frozenset[int] = frozenset()  # brokers that are being stopped
    unreadable: frozenset[str] = frozenset()  # topics whose nodes cannot be decoded: they exist, whatever `topics` holds
    position: int = -1
