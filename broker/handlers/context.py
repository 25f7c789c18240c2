"""What the handlers work with; built once by `node.py`."""

from __future__ import annotations

from dataclasses import dataclass

from broker.chores import Chores
from broker.clock import Clock
from broker.config import BrokerConfig
from broker.coordination.grouped_writes import GroupedWrites
from broker.coordination.local import ProducerIds
from broker.counters import Counters
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_store import OffsetStore
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.deadlines import Deadlines
from broker.handlers.purgatory import Purgatory
from broker.handlers.turn import ProduceTurn
from broker.health import Health
from broker.helpers import Helpers
from broker.partitions.flusher import Flusher
from broker.partitions.manager import PartitionManager
from broker.partitions.topic_changes import TopicChanges


@dataclass(slots=True, kw_only=True)
class Context:
    """The rooms below, as the handlers see them."""

    config: BrokerConfig
    counters: Counters
    health: Health
    cluster_id: str
    clock: Clock
    partitions: PartitionManager
    producer_ids: ProducerIds
    groups: GroupCoordinator
    offsets: OffsetStore
    flusher: Flusher
    purgatory: Purgatory
    deadlines: Deadlines
    produce_turn: ProduceTurn
    helpers: Helpers
    chores: Chores
    topic_changes: TopicChanges
    checkpoints: GroupedWrites
    advertised_host: str
    advertised_port: int
    metadata_cache: AnswerCache
