"""The broker without its sockets: every room from the handlers down, built in order, driven turn by turn.

`node.py` puts the selector loop around it; tests drive it directly, with a clock of their own and helper jobs that run when
they are told to.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.clock import Clock
from broker.config import BrokerConfig
from broker.coordination.broker_overrides import BrokerOverrides
from broker.coordination.local import ProducerIds, TopicRegistry
from broker.counters import Counters
from broker.errors import StorageError
from broker.groups.coordinator import CoordinatorRules, GroupCoordinator
from broker.groups.offset_store import OffsetStore
from broker.groups.rebalance import GroupRules
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.commits import sweep_groups
from broker.handlers.context import Context
from broker.handlers.dispatch import dispatcher
from broker.handlers.groups import deliver
from broker.handlers.produce import fail
from broker.handlers.purgatory import Purgatory
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import ProduceTurn
from broker.helpers import Helpers
from broker.partitions.cleaner import LogCleaner
from broker.partitions.flusher import Flusher
from broker.partitions.log_settings import LogSettings
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.partitions.retention import Retention
from broker.protocol.framing import Request
from broker.storage.filesystem import FileSystem
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.engine")


@dataclass(slots=True)
class _Periodic:
    """Something that is done every `interval` seconds."""

    interval: float
    action: Callable[[], None]
    due: float


class Engine:
    """Opens and recovers the data directory, answers requests, ends turns."""

    def __init__(self, config: BrokerConfig, *, clock: Clock, filesystem: FileSystem, helpers: Helpers, port: int) -> None:
        self.config = config
        self._clock = clock
        self._filesystem = filesystem
        self._helpers = helpers
        self.counters = Counters()
        directory = LogDirectory.open(
            config.log_dirs, broker_id=config.broker_id, cluster_id=config.cluster_id or None, filesystem=filesystem
        )
        self.partitions = PartitionManager(
            directory=directory,
            registry=TopicRegistry(directory, uuid.uuid4),
            settings=LogSettings(config.log, BrokerOverrides(directory)),
            config=config,
            clock=clock,
            filesystem=filesystem,
        )
        self.partitions.open_all()
        self.context = self._build_context(directory, port)
        self.dispatch: Callable[[Request], Parts | Pending] = dispatcher(self.context)
        self._cleaner = LogCleaner(self.partitions, directory, helpers.submit, clock, filesystem, config)
        self._retention = Retention(self.partitions, self._remove_files, clock, config)
        self._periodics = self._build_periodics()
        self._next_periodic = min(periodic.due for periodic in self._periodics)

    def _build_context(self, directory: LogDirectory, port: int) -> Context:
        config, partitions = self.config, self.partitions
        flusher = Flusher(self._helpers, self._clock, self.counters.flushes)
        purgatory = Purgatory()
        metadata_cache = AnswerCache()
        offsets = OffsetStore(partitions, self._clock, groups_max=config.groups_max, segment_bytes=config.offsets_segment_bytes)
        offsets.load()

        def removed(partition: Partition) -> None:
            self.counters.deleted.add(partition.traffic)
            flusher.forget(partition, StorageError(f"{partition.name} was deleted"))
            purgatory.wake(partition)

        partitions.on_change = metadata_cache.clear
        partitions.on_removed = removed
        partitions.on_rolled = lambda partition: flusher.appended(partition, 0)
        flusher.on_exposed = purgatory.exposed
        flusher.on_offline = purgatory.wake
        return Context(
            config=config,
            counters=self.counters,
            cluster_id=directory.cluster_id,
            clock=self._clock,
            partitions=partitions,
            producer_ids=ProducerIds(directory),
            groups=self._build_groups(),
            offsets=offsets,
            flusher=flusher,
            purgatory=purgatory,
            produce_turn=ProduceTurn(flusher, purgatory.has_waiters, functools.partial(fail, counters=self.counters)),
            helpers=self._helpers,
            advertised_host=config.advertised.host,
            advertised_port=config.advertised.port or port,
            remove_files=self._remove_files,
            metadata_cache=metadata_cache,
        )

    def _build_groups(self) -> GroupCoordinator:
        config = self.config
        rules = CoordinatorRules(
            group=GroupRules(initial_delay_ms=config.group_initial_rebalance_delay_ms, size_max=config.group_size_max),
            session_ms_min=config.group_session_ms_min,
            session_ms_max=config.group_session_ms_max,
            groups_max=config.groups_max,
            bytes_max=config.groups_bytes_max,
        )
        return GroupCoordinator(rules, lambda: str(uuid.uuid4()), self._clock.monotonic())

    def _build_periodics(self) -> list[_Periodic]:
        now = self._clock.monotonic()
        checkpoint = self.config.checkpoint_interval_ms / 1000
        expiry = self.config.producer_expiration_check_ms / 1000
        sweep = self.config.offsets_retention_check_ms / 1000
        return [
            _Periodic(checkpoint, self.partitions.checkpoint, now + checkpoint),
            _Periodic(expiry, self.partitions.expire_producers, now + expiry),
            _Periodic(sweep, lambda: sweep_groups(self.context), now + sweep),
        ]

    def _remove_files(self, paths: list[Path]) -> None:
        def removed(_: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("what was deleted could not be removed from the disk: %s", error)

        if paths:
            self._helpers.submit(lambda: self._remove_all(paths), removed)

    def _remove_all(self, paths: list[Path]) -> None:
        for path in paths:
            self._filesystem.remove(path)

    # -- a turn of the loop ------------------------------------------------------------------------------------------------------

    def drain_helpers(self) -> None:
        """Handle what helper threads have finished."""
        self._helpers.drain()

    def end_turn(self) -> None:
        """Write what was staged and answer it, expire what has waited long enough, start the flushes that are due."""
        context = self.context
        context.produce_turn.end()
        now = context.clock.monotonic()
        context.purgatory.expire(now)
        if now >= context.groups.due:
            deliver(context.groups.expire(now))
        context.flusher.end_turn()
        if now >= self._cleaner.due:
            self._cleaner.work(now)
        if now >= self._retention.due:
            self._retention.work(now)
        if now >= self._next_periodic:
            self._run_periodics(now)

    def _run_periodics(self, now: float) -> None:
        for periodic in self._periodics:
            if now >= periodic.due:
                periodic.due = now + periodic.interval
                periodic.action()
        self._next_periodic = min(periodic.due for periodic in self._periodics)

    def answer_staged(self) -> None:
        """Write and answer what pipelined requests have staged since the turn ended."""
        self.context.produce_turn.end()

    def next_deadline(self) -> float:
        """When, on the monotonic clock, there is something to do although nobody has sent anything."""
        deadline = min(self._next_periodic, self.context.groups.due)
        for other in (self.context.purgatory.next_deadline(), self.context.flusher.next_deadline()):
            if other is not None and other < deadline:
                deadline = other
        return min(deadline, self._cleaner.due, self._retention.due)

    def close(self) -> bool:
        """Flush, checkpoint and release the directory; True where the next start need not recover."""
        self._cleaner.stop()
        self._helpers.close()
        return self.partitions.close()
