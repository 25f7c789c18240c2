"""What the handlers work with; built once by `engine.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.api.produce_turn import ProduceTurn
from broker.api.purgatory import Deadlines, Purgatory
from broker.clock import Clock
from broker.cluster import cluster_view, local_files
from broker.cluster.producer_ids import ProducerIds
from broker.config.settings import BrokerConfig
from broker.counters import Counters
from broker.groups import committed_offsets, coordinator
from broker.health import Health
from broker.log import background_tasks, manager, partition, topic_admin
from broker.log.flusher import Flusher
from broker.log.high_watermark import HighWatermark
from broker.log.thread_pool import ThreadPool

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
    partitions: manager.PartitionManager
    producer_ids: ProducerIds
    groups: coordinator.GroupCoordinator
    offsets: committed_offsets.OffsetStore
    flusher: Flusher
    high_watermark: HighWatermark
    purgatory: Purgatory
    deadlines: Deadlines
    produce_turn: ProduceTurn
    thread_pool: ThreadPool
    tasks: background_tasks.BackgroundTasks
    topic_changes: topic_admin.TopicAdmin
    checkpoints: local_files.GroupedWrites
    view: cluster_view.ClusterView
    metadata_cache: MetadataCache
    # A standalone broker has none of these.
    cluster: ClusterMember | None = None
    leader: Leader | None = None  # the leader's side of replication
    serves_consumers: Callable[[partition.Partition], bool] | None = None
