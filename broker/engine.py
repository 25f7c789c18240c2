"""The composition root: the broker without its sockets. Builds every package from the handlers down, drives them turn by turn.

`node.py` runs the event loop around it; tests drive it directly, with their own clock and with helper jobs that run on
request.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from broker.chores import Chores
from broker.clock import Clock
from broker.config.settings import BrokerConfig
from broker.coordination.grouped_writes import GroupedWrites
from broker.coordination.view import ClusterView
from broker.counters import Counters
from broker.errors import BrokerError
from broker.groups.coordinator import CoordinatorRules, GroupCoordinator
from broker.groups.messages import Answer
from broker.groups.offset_store import OffsetStore
from broker.groups.rebalance import GroupRules
from broker.handlers.answer_cache import AnswerCache
from broker.handlers.commits import sweep_groups
from broker.handlers.context import Context
from broker.handlers.coordination import Coordination, LocalCoordination
from broker.handlers.deadlines import Deadlines
from broker.handlers.dispatch import dispatcher
from broker.handlers.error_codes import code_of
from broker.handlers.fast_lane import FastLane
from broker.handlers.group_moves import GroupMoves
from broker.handlers.groups import deliver, store_group
from broker.handlers.produce import fail
from broker.handlers.purgatory import Purgatory
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import ProduceTurn
from broker.health import Health
from broker.helpers import Helpers
from broker.partitions.cleaner import LogCleaner
from broker.partitions.exposure import Exposure, ReplicatedExposure, Watermarks
from broker.partitions.flusher import Flusher
from broker.partitions.log_settings import LogSettings
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.partitions.retention_rounds import Retention
from broker.protocol.framing import Origin, Request
from broker.storage.filesystem import FileSystem
from broker.storage.log_directory import LogDirectory

if TYPE_CHECKING:  # a standalone broker imports none of this
    from broker.cluster import Cluster, Outside

logger = logging.getLogger("broker.engine")

_CLEANED_OFFSETS = "writing how far logs are compacted"  # if this fails, the next checkpoint retries it
_DEFECTIVE_PAUSE_SECONDS = 10.0  # before a worker that failed for an unknown reason is retried


@dataclass(slots=True)
class _Periodic:
    """An action that runs every `interval` seconds."""

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
        ports: Mapping[str, int],
        new_id: Callable[[], uuid.UUID],
        freeze: Callable[[], None] = lambda: None,
        watermarks: Watermarks | None = None,
        view: ClusterView | None = None,
        coordination: Coordination | None = None,
        outside: Outside | None = None,
        on_ready: Callable[[BrokerError | None], None] = lambda error: None,
    ) -> None:
        """`ports` are the actual ports, by listener. `new_id` returns ids for topics and members, each of them unique. `freeze`
        is called after many long-lived objects have been created; a real broker process passes `gc.freeze`.

        With `outside` this is one broker of a cluster, which it joins asynchronously: `on_ready` is called once it can serve
        requests, or with the reason why it cannot join. Without `outside` it is the only broker and leads every partition.

        Tests use other replicas without a cluster: then `watermarks` reports how far the records of the partitions that this
        broker leads are safe, `coordination` is the state that the brokers share, and `view` is what clients are shown of it,
        where that differs from the broker's own view."""
        self.config = config
        self._clock = clock
        self._filesystem = filesystem
        self._helpers = helpers
        self._new_id = new_id
        self._watermarks = watermarks
        self.counters = Counters()
        self.health = Health()
        self.cluster: Cluster | None = None
        # The directory comes first: opening it takes the lock and shows whether the last shutdown was clean. Everything after
        # this can fail, and must then release the lock.
        directory = LogDirectory.open(
            config.log_dirs,
            broker_id=config.broker_id,
            cluster_id=config.cluster_id or None,
            filesystem=filesystem,
            new_id=new_id,
            in_cluster=outside is not None,
            boot_id="" if outside is None else outside.boot_id,
        )
        try:
            own = coordination or self._coordination(directory, ports, outside)
            self._open(directory, own, freeze, view)
            if self.cluster is not None:
                self._enter_cluster(self.cluster, on_ready)
        except BaseException:
            # Nothing has been written yet: a failed start must not force the next one to recover logs that were intact.
            directory.close(clean=directory.was_clean)
            raise

    def _open(
        self, directory: LogDirectory, coordination: Coordination, freeze: Callable[[], None], view: ClusterView | None
    ) -> None:
        config, clock, helpers = self.config, self._clock, self._helpers
        self._directory = directory
        self.chores = Chores(helpers.store, clock, self.health)
        self.partitions = PartitionManager(
            directory=directory,
            registry=coordination.topics,
            settings=LogSettings(config.log, coordination.overrides),
            config=config,
            clock=clock,
            filesystem=self._filesystem,
            freeze=freeze,
            begin_chore=self.chores.begin,
            leads_all=self._watermarks is None,
        )
        # A standalone broker recovers all its logs here, before it answers any request. In a cluster nothing is opened yet:
        # ZooKeeper supplies the list of logs this broker should have later (replication/start.py).
        coordination.open(self.partitions)
        self._checkpoints = GroupedWrites(helpers.store, self.partitions.checkpoint_job)
        self._cleaned_offsets = GroupedWrites(helpers.store, directory.cleaned_offsets_job)
        self.context = self._build_context(coordination, view or coordination.view(self.partitions))
        # After the context, because everything in it must forget deleted topics; before the lane, which arms itself on existing
        # partitions.
        coordination.follow(self.context)
        self.lane = FastLane(self.context) if config.fast_lane else None
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

    def _coordination(self, directory: LogDirectory, ports: Mapping[str, int], outside: Outside | None) -> Coordination:
        if outside is None:
            return LocalCoordination(
                self.config,
                directory,
                filesystem=self._filesystem,
                helpers=self._helpers,
                new_id=self._new_id,
                ports=ports,
                remove_files=self._remove_files,
            )
        # Imported here and not above: most of the startup time is imports (docs/decisions/2026-11-21-a-start-imports-little.md),
        # and a standalone broker needs neither kazoo nor the replication packages.
        from broker.cluster import Cluster
        from broker.handlers.cluster_coordination import ClusterCoordination

        self.cluster = Cluster(
            self.config,
            outside,
            directory,
            clock=self._clock,
            filesystem=self._filesystem,
            helpers=self._helpers,
            new_id=self._new_id,
            ports=ports,
            code_of=code_of,
        )
        self._watermarks = self.cluster.leader
        return ClusterCoordination(self.cluster.member, self.config, self._new_id)

    def _enter_cluster(self, cluster: Cluster, on_ready: Callable[[BrokerError | None], None]) -> None:
        from broker.groups.consumer_mirror import ConsumerMirror
        from broker.handlers.gone_topics import forget_offsets

        context = self.context
        assert isinstance(context.exposure, ReplicatedExposure), "it was built over the leader's watermarks"
        # Listeners are called in this order when the image changes: roles (attached here) before the one that forgets offsets of
        # deleted topics, which looks at the partitions led by then.
        cluster.attach(self.partitions, context.exposure, on_ready=on_ready)
        context.leader, context.serves_consumers = cluster.leader, cluster.serves_consumers
        context.produce_turn.why_not = context.offsets.why_not = cluster.why_not
        cluster.member.follower.listen(functools.partial(forget_offsets, context))
        if cluster.consumers is not None:
            context.groups.mirror = ConsumerMirror(cluster.consumers)
        cluster.begin()

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served: a broker in a cluster has to join it first."""
        return self.cluster is None or self.cluster.is_ready

    def disconnected(self, origin: Origin) -> None:
        """A connection was closed; `origin` is the same object that its requests carried."""
        if self.cluster is not None:
            self.cluster.leader.closed(origin)

    def leave(self, then: Callable[[], None]) -> None:
        """The process should stop: `then` is called once no other broker depends on it. Safe in a signal handler."""
        if self.cluster is None:
            then()
        else:
            self.cluster.leave(then)

    def _build_context(self, coordination: Coordination, view: ClusterView) -> Context:
        config, partitions = self.config, self.partitions
        flusher = Flusher(self._helpers, self._clock, self.counters.flushes)
        exposure = self._build_exposure(flusher)
        deadlines = Deadlines()
        purgatory = Purgatory(deadlines)
        metadata_cache = AnswerCache()
        offsets = OffsetStore(partitions, self._clock, groups_max=config.groups_max)
        produce_turn = ProduceTurn(exposure, purgatory.has_waiters, functools.partial(fail, counters=self.counters))

        # Requests wait for a partition in three places: for its flush (exposure), for new records (purgatory), for its write in
        # this turn (produce_turn). Anything that ends a partition here must notify each of them, or a client waits until its own
        # timeout.
        def removed(partition: Partition, error: BrokerError) -> None:
            self.counters.deleted.add(partition.traffic)
            exposure.forget(partition, error)
            purgatory.wake(partition)

        def lost(partition: Partition, error: BrokerError) -> None:
            produce_turn.lose(partition, error)
            exposure.lost(partition, error)
            purgatory.wake(partition)
            group_moves.lost(partition)

        # Lower packages know nothing of higher ones: they call a hook, and this is the only place that connects the hooks.
        partitions.on_change = metadata_cache.clear
        partitions.on_removed = removed
        partitions.on_lead_lost = lost
        partitions.on_rolled = lambda partition: flusher.appended(partition, 0)
        exposure.on_exposed = purgatory.exposed
        exposure.on_offline = purgatory.wake
        context = Context(
            config=config,
            counters=self.counters,
            health=self.health,
            clock=self._clock,
            partitions=partitions,
            producer_ids=coordination.producer_ids,
            groups=self._build_groups(offsets),
            offsets=offsets,
            flusher=flusher,
            exposure=exposure,
            purgatory=purgatory,
            deadlines=deadlines,
            produce_turn=produce_turn,
            helpers=self._helpers,
            chores=self.chores,
            topic_changes=coordination.topic_admin(partitions),
            checkpoints=self._checkpoints,
            view=view,
            metadata_cache=metadata_cache,
            cluster=coordination.member,
        )
        context.groups.on_unstored = functools.partial(store_group, context=context)
        group_moves = GroupMoves(context)
        self._watch_leads(context, group_moves)
        return context

    def _watch_leads(self, context: Context, group_moves: GroupMoves) -> None:
        """With other brokers, leadership moves between them. A standalone broker owns all groups from the start."""
        exposure = context.exposure
        if not isinstance(exposure, ReplicatedExposure):
            group_moves.own_all()
            return

        def won(partition: Partition) -> None:
            exposure.lead(partition)
            group_moves.won(partition)

        self.partitions.on_lead_won = won

    def _build_exposure(self, flusher: Flusher) -> Exposure:
        if self._watermarks is None:
            return Exposure(flusher)
        return ReplicatedExposure(flusher, self._watermarks)

    def _build_groups(self, offsets: OffsetStore) -> GroupCoordinator:
        config = self.config
        rules = CoordinatorRules(
            group=GroupRules(initial_delay_ms=config.group_initial_rebalance_delay_ms, size_max=config.group_size_max),
            session_ms_min=config.group_session_ms_min,
            session_ms_max=config.group_session_ms_max,
            groups_max=config.groups_max,
            bytes_max=config.groups_bytes_max,
        )
        return GroupCoordinator(rules, lambda: str(self._new_id()), offsets.readable)

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
        """An outdated checkpoint only makes recovery slower, so a failed write is simply retried at the next interval. Written
        before all logs are open, it would leave out the unopened ones."""
        if not self.is_ready:
            return
        self._checkpoints.write(functools.partial(self._note_outcome, "writing the checkpoints"))
        if _CLEANED_OFFSETS in self.health.troubles:
            self._write_cleaned_offsets()

    def _write_cleaned_offsets(self) -> None:
        """An outdated file only makes compaction read some segments again."""
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
        """Handle finished jobs of helper threads, and events from ZooKeeper."""
        self._helpers.drain()
        if self.cluster is not None:
            self.cluster.drain()

    def end_turn(self) -> None:
        """Write and answer what was staged, expire what has waited long enough, start the flushes that are due.

        Nothing here belongs to a single client, so no exception may end the loop. Code that knows its client or its partition
        has its own guard; this one is for unforeseen exceptions: the turn is repeated, each step guarded separately. A step that
        has already run finds nothing to do. Only `ProduceTurn` writes to logs, and it takes a partition offline if its
        bookkeeping may have fallen behind its file."""
        context = self.context
        try:
            # The order of a turn: first the writes, so that everything below sees the logs as clients will; then the cluster,
            # whose followers are answered with what has just been written; deadlines after that, so that a request which was
            # served in time does not expire; flushes once everything they should cover is written; last what may take
            # milliseconds.
            context.produce_turn.end()
            now = context.clock.monotonic()
            if self.cluster is not None:
                self.cluster.work(now)
            if now >= context.deadlines.due:
                context.deadlines.expire(now)
            if now >= context.groups.due:
                context.groups.expire(now, self._deliver)
                context.produce_turn.end()  # groups that have become empty are written
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
        """Answer the members of a group whose deadlines have passed."""
        try:
            deliver(answers)
        except Exception as error:
            self.health.defect("answering the members of a group", error)
            for answer in answers:  # or they would wait until their clients time out
                if not answer.ticket.pending.done:
                    answer.ticket.pending.close_as_defect()

    def _end_turn_step_by_step(self) -> None:
        context = self.context
        now = context.clock.monotonic()
        # Staged batches are views of connections' buffers, with offsets that are not in any log: neither may outlive the turn.
        # Unanswered requests get an error, because nothing may be acknowledged that is not in a log.
        context.produce_turn.abandon()
        steps: list[tuple[str, Callable[[], object]]] = [
            ("deadlines", lambda: context.deadlines.expire(now)),
            ("groups", lambda: context.groups.expire(now, self._deliver)),
            ("flushes", context.flusher.end_turn),
            ("chores", lambda: self.chores.work(now)),
        ]
        if (cluster := self.cluster) is not None:
            steps.insert(0, ("the cluster", lambda: cluster.work(now)))  # in the order of a turn, see there
        for what, step in steps:
            self.health.attempt(what, step)
        self.answer_staged()
        for what, worker in (("compaction", self._cleaner), ("retention", self._retention)):
            # A worker that fails stays due and would fail again in every turn: the loop would spin on it.
            if now >= worker.due and not self.health.attempt(what, lambda worker=worker: worker.work(now)):  # type: ignore[misc]
                worker.due = now + _DEFECTIVE_PAUSE_SECONDS
        self._run_periodics(now)

    def _run_periodics(self, now: float) -> None:
        for periodic in self._periodics:
            if now >= periodic.due:
                periodic.due = now + periodic.interval
                self.health.attempt(periodic.what, periodic.action)
        self._next_periodic = min(periodic.due for periodic in self._periodics)
        self.answer_staged()  # the first slice of a chore that one of them has begun: offsets to forget

    def answer_staged(self) -> None:
        """Write and answer what pipelined requests have staged since the turn ended, or chores after its writes. Staged batches
        are views of connections' buffers: whatever happens, none is left when this returns."""
        try:
            self.context.produce_turn.end()
        except Exception as error:
            self.health.defect("answering what was staged", error)
            self.context.produce_turn.abandon()

    def next_deadline(self) -> float:
        """When, on the monotonic clock, there is work to do even if no request arrives."""
        context = self.context
        return min(
            self._next_periodic,
            inf if self.cluster is None else self.cluster.due,
            context.groups.due,
            context.deadlines.due,
            context.flusher.next_deadline(),
            self._cleaner.due,
            self._retention.due,
            self.chores.due,
        )

    def close(self) -> bool:
        """Flush, checkpoint and release the directory; returns True if the next start does not need to recover."""
        # The order matters: compaction releases its files; then the helpers finish their current jobs, because a flush in
        # progress must not run into a closed file; then chores run to completion without the loop, and only then are logs
        # flushed and closed.
        self._cleaner.stop()
        self._helpers.close()
        self.chores.finish()
        if self.cluster is not None and not self.cluster.has_entered:
            self._directory.close(clean=self._directory.was_clean)  # as it was found: not all logs were opened
            return True
        return self.partitions.close()
