"""What the handlers work with; built once by `node.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.clock import Clock
from broker.config import BrokerConfig
from broker.coordination.local import ProducerIds
from broker.counters import Counters
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_store import OffsetStore
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.purgatory import Purgatory
from broker.handlers.turn import ProduceTurn
from broker.helpers import Helpers
from broker.partitions.flusher import Flusher
from broker.partitions.manager import PartitionManager


@dataclass(slots=True, kw_only=True)
class Context:
    """The rooms below, as the handlers see them."""

    config: BrokerConfig
    counters: Counters
    cluster_id: str
    clock: Clock
    partitions: PartitionManager
    producer_ids: ProducerIds
    groups: GroupCoordinator
    offsets: OffsetStore
    flusher: Flusher
    purgatory: Purgatory
    produce_turn: ProduceTurn
    helpers: Helpers
    advertised_host: str
    advertised_port: int
    remove_files: Callable[[list[Path]], None]  # beside the loop: a large file takes a while
    metadata_cache: AnswerCache
