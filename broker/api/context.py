"""What the handlers work with; built once by `engine.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.api.produce_turn import ProduceTurn
from broker.api.purgatory import Deadlines, Purgatory
from broker.clock import Clock
from broker.cluster.cluster_view import ClusterView
from broker.cluster.local_files import GroupedWrites
from broker.cluster.producer_ids import ProducerIds
from broker.config.settings import BrokerConfig
from broker.counters import Counters
from broker.groups.committed_offsets import OffsetStore
from broker.groups.coordinator import GroupCoordinator
from broker.health import Health
from broker.log.background_tasks import BackgroundTasks
from broker.log.flusher import Flusher
from broker.log.high_watermark import HighWatermark
from broker.log.manager import PartitionManager
from broker.log.partition import Partition
from broker.log.thread_pool import ThreadPool
from broker.log.topic_admin import TopicAdmin

if TYPE_CHECKING:
    from broker.api.metadata import MetadataCache

    # a standalone broker imports none of these
    from broker.cluster.membership import ClusterMember
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
    high_watermark: HighWatermark
    purgatory: Purgatory
    deadlines: Deadlines
    produce_turn: ProduceTurn
    thread_pool: ThreadPool
    tasks: BackgroundTasks
    topic_changes: TopicAdmin
    checkpoints: GroupedWrites
    view: ClusterView
    metadata_cache: MetadataCache
    # A standalone broker has none of these.
    cluster: ClusterMember | None = None
    leader: Leader | None = None  # the leader's side of replication
    serves_consumers: Callable[[Partition], bool] | None = None
