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

from broker.chores import Chores
from broker.clock import Clock
from broker.config import BrokerConfig
from broker.coordination.broker_overrides import BrokerOverrides
from broker.coordination.grouped_writes import GroupedWrites
from broker.coordination.local import ProducerIds, TopicRegistry
from broker.counters import Counters
from broker.errors import StorageError
from broker.groups.coordinator import CoordinatorRules, GroupCoordinator
from broker.groups.messages import Answer
from broker.groups.offset_store import OffsetStore
from broker.groups.rebalance import GroupRules
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.commits import sweep_groups
from broker.handlers.context import Context
from broker.handlers.deadlines import Deadlines
from broker.handlers.dispatch import dispatcher
from broker.handlers.groups import deliver
from broker.handlers.produce import fail
from broker.handlers.purgatory import Purgatory
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import ProduceTurn
from broker.health import Health
from broker.helpers import Helpers
from broker.partitions.cleaner import LogCleaner
from broker.partitions.flusher import Flusher
from broker.partitions.log_settings import LogSettings
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.partitions.retention import Retention
from broker.partitions.topic_changes import TopicChanges
from broker.protocol.framing import Request
from broker.storage.filesystem import FileSystem
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.engine")

_CLEANED_OFFSETS = "writing how far logs are compacted"  # a trouble that the next checkpoint tries again
_DEFECTIVE_PAUSE_SECONDS = 10.0  # before what failed for a reason that nobody knows is tried again


@dataclass(slots=True)
class _Periodic:
    """Something that is done every `interval` seconds."""

    what: str
    interval: float
    action: Callable[[], None]
    due: float


class Engine:
    """Opens and recovers the data directory, answers requests, ends turns."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        filesystem: FileSystem,
        helpers: Helpers,
        port: int,
        freeze: Callable[[], None] = lambda: None,
    ) -> None:
        """`freeze` is called where many objects were made that will live for long; a process of its own passes `gc.freeze`."""
        self.config = config
        self._clock = clock
        self._filesystem = filesystem
        self._helpers = helpers
        self.counters = Counters()
        self.health = Health()
        directory = LogDirectory.open(
            config.log_dirs, broker_id=config.broker_id, cluster_id=config.cluster_id or None, filesystem=filesystem
        )
        try:
            self._open(directory, port, freeze)
        except BaseException:
            # Nobody has written anything: a start that fails must not make the next one recover all that was in good order.
            directory.close(clean=directory.was_clean)
            raise

    def _open(self, directory: LogDirectory, port: int, freeze: Callable[[], None]) -> None:
        config, clock, helpers = self.config, self._clock, self._helpers
        self.partitions = PartitionManager(
            directory=directory,
            registry=TopicRegistry(directory, uuid.uuid4),
            settings=LogSettings(config.log, BrokerOverrides(directory)),
            config=config,
            clock=clock,
            filesystem=self._filesystem,
            freeze=freeze,
        )
        self.partitions.open_all()
        self.chores = Chores(helpers.store, clock, self.health)
        self._checkpoints = GroupedWrites(helpers.store, self.partitions.checkpoint_job)
        self._cleaned_offsets = GroupedWrites(helpers.store, directory.cleaned_offsets_job)
        self.context = self._build_context(directory, port)
        self.dispatch: Callable[[Request], Parts | Pending] = dispatcher(self.context)
        self._cleaner = LogCleaner(
            self.partitions,
            directory,
            helpers.submit,
            clock,
            self._filesystem,
            config,
            self.health,
            self._write_cleaned_offsets,
        )
        self._retention = Retention(self.partitions, self._remove_files, clock, config, self.health)
        self._periodics = self._build_periodics()
        self._next_periodic = min(periodic.due for periodic in self._periodics)

    def _build_context(self, directory: LogDirectory, port: int) -> Context:
        config, partitions = self.config, self.partitions
        flusher = Flusher(self._helpers, self._clock, self.counters.flushes)
        deadlines = Deadlines()
        purgatory = Purgatory(deadlines)
        metadata_cache = AnswerCache()
        offsets = OffsetStore(partitions, self._clock, groups_max=config.groups_max)
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
            health=self.health,
            cluster_id=directory.cluster_id,
            clock=self._clock,
            partitions=partitions,
            producer_ids=ProducerIds(directory, self._helpers.store),
            groups=self._build_groups(),
            offsets=offsets,
            flusher=flusher,
            purgatory=purgatory,
            deadlines=deadlines,
            produce_turn=ProduceTurn(flusher, purgatory.has_waiters, functools.partial(fail, counters=self.counters)),
            helpers=self._helpers,
            chores=self.chores,
            topic_changes=TopicChanges(partitions, directory, self._filesystem, self._remove_files),
            checkpoints=self._checkpoints,
            advertised_host=config.advertised.host,
            advertised_port=config.advertised.port or port,
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
            _Periodic("the checkpoint", checkpoint, self._checkpoint, now + checkpoint),
            _Periodic("forgetting producers", expiry, self.partitions.expire_producers, now + expiry),
            _Periodic("forgetting offsets", sweep, self._sweep_groups, now + sweep),
        ]

    def _checkpoint(self) -> None:
        """An old one costs a recovery time, nothing else: a disk that refuses it today is asked again next time."""
        self._checkpoints.write(functools.partial(self._note_outcome, "writing the checkpoints"))
        if _CLEANED_OFFSETS in self.health.troubles:
            self._write_cleaned_offsets()

    def _write_cleaned_offsets(self) -> None:
        """An old one makes compaction read again what it has read."""
        self._cleaned_offsets.write(functools.partial(self._note_outcome, _CLEANED_OFFSETS))

    def _sweep_groups(self) -> None:
        def failed() -> None:
            logger.exception("old offsets could not be forgotten; this is a defect of the broker")

        self.chores.begin(sweep_groups(self.context), failed)

    def _note_outcome(self, what: str, error: BaseException | None) -> None:
        if error is None:
            self.health.succeeds(what)
        else:
            self.health.fails(what, error)

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
        """Write what was staged and answer it, expire what has waited long enough, start the flushes that are due.

        Nothing here belongs to one client, so nothing may end the loop. What knows its client or its partition guards itself;
        this is for what nobody thought of: the turn is gone through again, each step on its own. A step that has run already
        finds nothing to do. Only `ProduceTurn` writes to logs, and a partition whose bookkeeping may have fallen behind its file
        is taken offline there."""
        context = self.context
        try:
            context.produce_turn.end()
            now = context.clock.monotonic()
            context.deadlines.expire(now)
            if now >= context.groups.due:
                context.groups.expire(now, self._deliver)
            context.flusher.end_turn()
            if now >= self.chores.due:
                self.chores.work(now)
                context.produce_turn.end()  # a chore may have staged something: commits that waited for their topic
            if now >= self._cleaner.due:
                self._cleaner.work(now)
            if now >= self._retention.due:
                self._retention.work(now)
            if now >= self._next_periodic:
                self._run_periodics(now)
        except Exception as error:
            self.health.defect("a turn of the loop", error)
            self._end_turn_step_by_step()

    def _deliver(self, answers: list[Answer]) -> None:
        """What time has decided for the members of a group."""
        try:
            deliver(answers)
        except Exception as error:
            self.health.defect("answering the members of a group", error)
            for answer in answers:  # or they would wait until their own clients lose patience
                if not answer.ticket.pending.done:
                    answer.ticket.pending.close_as_defect()

    def _end_turn_step_by_step(self) -> None:
        context = self.context
        now = context.clock.monotonic()
        context.produce_turn.abandon()
        steps: list[tuple[str, Callable[[], object]]] = [
            ("deadlines", lambda: context.deadlines.expire(now)),
            ("groups", lambda: context.groups.expire(now, self._deliver)),
            ("flushes", context.flusher.end_turn),
            ("chores", lambda: self.chores.work(now)),
        ]
        for what, step in steps:
            self.health.attempt(what, step)
        for what, worker in (("compaction", self._cleaner), ("retention", self._retention)):
            if now >= worker.due and not self.health.attempt(what, lambda worker=worker: worker.work(now)):  # type: ignore[misc]
                worker.due = now + _DEFECTIVE_PAUSE_SECONDS
        self._run_periodics(now)

    def _run_periodics(self, now: float) -> None:
        for periodic in self._periodics:
            if now >= periodic.due:
                periodic.due = now + periodic.interval
                self.health.attempt(periodic.what, periodic.action)
        self._next_periodic = min(periodic.due for periodic in self._periodics)

    def answer_staged(self) -> None:
        """Write and answer what pipelined requests have staged since the turn ended. What is staged are views of connections'
        buffers: whatever happens, none is left when this returns."""
        try:
            self.context.produce_turn.end()
        except Exception as error:
            self.health.defect("answering what was staged", error)
            self.context.produce_turn.abandon()

    def next_deadline(self) -> float:
        """When, on the monotonic clock, there is something to do although nobody has sent anything."""
        deadline = min(self._next_periodic, self.context.groups.due)
        for other in (self.context.deadlines.next_deadline(), self.context.flusher.next_deadline()):
            if other is not None and other < deadline:
                deadline = other
        return min(deadline, self._cleaner.due, self._retention.due, self.chores.due)

    def close(self) -> bool:
        """Flush, checkpoint and release the directory; True where the next start need not recover."""
        self._cleaner.stop()
        self._helpers.close()
        self.chores.finish()
        return self.partitions.close()
