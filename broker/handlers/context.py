"""What the handlers work with; built once by `engine.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.chores import Chores
from broker.clock import Clock
from broker.config.settings import BrokerConfig
from broker.coordination.grouped_writes import GroupedWrites
from broker.coordination.producer_ids import ProducerIds
from broker.coordination.view import ClusterView
from broker.counters import Counters
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_store import OffsetStore
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.deadlines import Deadlines
from broker.handlers.purgatory import Purgatory
from broker.handlers.turn import ProduceTurn
from broker.health import Health
from broker.helpers import Helpers
from broker.partitions.exposure import Exposure
from broker.partitions.flusher import Flusher
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.partitions.topic_admin import TopicAdmin

if TYPE_CHECKING:  # a standalone broker imports none of this
    from broker.coordination.member import ClusterMember
    from broker.replication.leader import Leader


@dataclass(slots=True, kw_only=True)
class Context:
    """The packages below, as the handlers see them."""

    config: BrokerConfig
    counters: Counters
    health: Health
    clock: Clock
    partitions: PartitionManager
    producer_ids: ProducerIds
    groups: GroupCoordinator
    offsets: OffsetStore
    flusher: Flusher
    exposure: Exposure
    purgatory: Purgatory
    deadlines: Deadlines
    produce_turn: ProduceTurn
    helpers: Helpers
    chores: Chores
    topic_changes: TopicAdmin
    checkpoints: GroupedWrites
    view: ClusterView
    metadata_cache: AnswerCache
    # A standalone broker has none of these.
    cluster: ClusterMember | None = None
    leader: Leader | None = None  # the leader's side of replication
    serves_consumers: Callable[[Partition], bool] | None = None
