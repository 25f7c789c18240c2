"""The broker without its sockets: opens the data directory, has every package built (`composition.py` for what handlers use), and
drives them turn by turn.

`node.py` runs the event loop around it; tests drive it directly, with their own clock and with background jobs that run on
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

from logbus_broker import composition, errors, health, logs
from logbus_broker.api import dispatch, error_codes, groups, handler, internal_topics, produce_fast_path, users
from logbus_broker.api.metadata_source import LocalMetadata, MetadataSource
from logbus_broker.clock import Clock
from logbus_broker.cluster import cluster_view, local_files
from logbus_broker.filesystem import FileSystem
from logbus_broker.groups.members import Answer
from logbus_broker.log import background_tasks, cleaner, high_watermark, log_directory, log_retention, manager, storage_watch
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol.framing import Origin, Request
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:  # a standalone broker imports none of this
    from logbus_broker.cluster_engine import Cluster, ClusterEnvironment

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
        thread_pool: ThreadPool,
        ports: Mapping[str, int],
        new_id: Callable[[], uuid.UUID],
        freeze: Callable[[], None] = lambda: None,
        watermarks: high_watermark.Watermarks | None = None,
        view: cluster_view.ClusterView | None = None,
        metadata_source: MetadataSource | None = None,
        environment: ClusterEnvironment | None = None,
        on_ready: Callable[[errors.BrokerError | None], None] = lambda error: None,
    ) -> None:
        """`ports` are the actual ports, by listener. `new_id` returns ids for topics and members, each of them unique. `freeze`
        is called after many long-lived objects have been created; a real broker process passes `gc.freeze`.

        With `environment` this is one broker of a cluster, which it joins asynchronously: `on_ready` is called once it can serve
        requests, or with the reason why it cannot join. Without `environment` it is the only broker and leads every partition.

        Tests use other replicas without a cluster: then `watermarks` reports how far the records of the partitions that this
        broker leads are safe, `metadata_source` is the state that the brokers share, and `view` is what clients are shown of it,
        where that differs from the broker's own view."""
        self.config = config
        self._clock = clock
        self._filesystem = filesystem
        self._thread_pool = thread_pool
        self._new_id = new_id
        self._watermarks = watermarks
        self.counters = health.Counters()
        self.health = health.Health()
        self.cluster: Cluster | None = None
        # The directory comes first: opening it takes the lock and shows whether the last shutdown was clean. Everything after
        # this can fail, and must then release the lock.
        directory = log_directory.LogDirectory.open(
            config.log_dirs,
            broker_id=config.broker_id,
            cluster_id=config.cluster_id or None,
            filesystem=filesystem,
            new_id=new_id,
            in_cluster=environment is not None,
            boot_id="" if environment is None else environment.boot_id,
        )
        try:
            own = metadata_source or self._metadata_source(directory, ports, environment)
            self._open(directory, own, freeze, view)
            if self.cluster is not None:
                self._enter_cluster(self.cluster, on_ready)
        except BaseException:
            # Nothing has been written yet: a failed start must not force the next one to recover logs that were intact.
            directory.close(clean=directory.was_clean)
            raise

    def _open(
        self,
        directory: log_directory.LogDirectory,
        metadata_source: MetadataSource,
        freeze: Callable[[], None],
        view: cluster_view.ClusterView | None,
    ) -> None:
        config, clock, thread_pool = self.config, self._clock, self._thread_pool
        self._directory = directory
        self.tasks = background_tasks.BackgroundTasks(thread_pool.store, clock, self.health)
        self.partitions = manager.PartitionManager(
            directory=directory,
            registry=metadata_source.topics,
            settings=manager.LogSettings(config.log, metadata_source.overrides),
            config=config,
            clock=clock,
            filesystem=self._filesystem,
            freeze=freeze,
            begin_task=self.tasks.begin,
            leads_all=self._watermarks is None,
        )
        # A standalone broker recovers all its logs here, before it answers any request. In a cluster nothing is opened yet:
        # ZooKeeper supplies the list of logs this broker should have later (replication/lifecycle.py).
        metadata_source.open(self.partitions)
        self._checkpoints = local_files.GroupedWrites(thread_pool.store, self.partitions.checkpoint_job)
        self._cleaned_offsets = local_files.GroupedWrites(thread_pool.store, directory.checkpoints.cleaned_offsets_job)
        self.context = composition.build_context(
            config,
            metadata_source,
            self.partitions,
            watermarks=self._watermarks,
            view=view or metadata_source.view(self.partitions),
            counters=self.counters,
            health=self.health,
            clock=clock,
            thread_pool=thread_pool,
            tasks=self.tasks,
            checkpoints=self._checkpoints,
            new_id=self._new_id,
        )
        self.storage = storage_watch.StorageWatch(
            self.partitions, self.context.flusher, thread_pool, self._filesystem, clock, config
        )
        self.context.produce_turn.on_refused = self.storage.refused
        # After the context, because everything in it must forget deleted topics; before the fast path, which looks up existing
        # partitions.
        metadata_source.follow(self.context)
        self.fast_path = produce_fast_path.ProduceFastPath(self.context) if config.fast_path else None
        self.dispatch: Callable[[Request], handler.Parts | handler.Pending] = dispatch.dispatcher(self.context)
        self._cleaner = cleaner.LogCleaner(
            self.partitions,
            directory,
            thread_pool.submit,
            clock,
            self._filesystem,
            config,
            self.health,
            self._write_cleaned_offsets,
        )
        self._retention = log_retention.LogRetention(self.partitions, self._remove_files, clock, config, self.health)
        self._periodics = self._build_periodics()
        self._next_periodic = min(periodic.due for periodic in self._periodics)

    def _metadata_source(
        self, directory: log_directory.LogDirectory, ports: Mapping[str, int], environment: ClusterEnvironment | None
    ) -> MetadataSource:
        if environment is None:
            return LocalMetadata(
                self.config,
                directory,
                filesystem=self._filesystem,
                thread_pool=self._thread_pool,
                new_id=self._new_id,
                ports=ports,
                remove_files=self._remove_files,
            )
        # Imported here and not above: most of the startup time is imports (docs/decisions/2026-11-21-a-start-imports-little.md),
        # and a standalone broker needs neither kazoo nor the replication packages.
        from logbus_broker.api.cluster_metadata import ClusterMetadata
        from logbus_broker.cluster_engine import Cluster

        self.cluster = Cluster(
            self.config,
            environment,
            directory,
            clock=self._clock,
            filesystem=self._filesystem,
            thread_pool=self._thread_pool,
            new_id=self._new_id,
            ports=ports,
            code_of=error_codes.code_of,
        )
        self._watermarks = self.cluster.leader
        return ClusterMetadata(self.cluster.member, self.config, self._new_id)

    def _enter_cluster(self, cluster: Cluster, on_ready: Callable[[errors.BrokerError | None], None]) -> None:
        from logbus_broker.api.cluster_metadata import forget_offsets

        context = self.context
        assert isinstance(context.high_watermark, high_watermark.ReplicatedHighWatermark), (
            "it was built over the leader's watermarks"
        )
        # Listeners are called in this order when the image changes: roles (attached here) before the one that forgets offsets of
        # deleted topics, which looks at the partitions led by then.
        cluster.attach(self.partitions, context.high_watermark, self.storage, on_ready=on_ready)
        context.leader, context.serves_consumers = cluster.leader, cluster.serves_consumers
        context.produce_turn.why_not = context.offsets.why_not = cluster.why_not
        cluster.member.watcher.listen(functools.partial(forget_offsets, context))
        cluster.begin()

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served: a broker in a cluster has to join it first."""
        return self.cluster is None or self.cluster.is_ready

    def disconnected(self, origin: Origin) -> None:
        """A connection was closed; `origin` is the same object that its requests carried."""
        if self.cluster is not None:
            self.cluster.leader.closed(origin)

    def add_users(self, passwords: Mapping[str, str], then: Callable[[errors.BrokerError | None], None]) -> None:
        """Give these users credentials, as far as they have none; `then` is called once they can log in."""

        def steps() -> background_tasks.Steps:
            try:
                yield from self.context.security.change(users.add_users(passwords))
            except errors.BrokerError as error:
                then(errors.StartupError(f"cannot store the users of logbus.users.file: {error}"))
            else:
                then(None)

        def failed() -> None:
            logs.log_bug("adding the users of logbus.users.file failed")
            then(errors.StartupError("cannot add the users of logbus.users.file: see the log"))

        self.tasks.begin(steps(), failed)

    def leave(self, then: Callable[[], None]) -> None:
        """The process should stop: `then` is called once no other broker depends on it. Safe in a signal handler."""
        if self.cluster is None:
            then()
        else:
            self.cluster.leave(then)

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
            logs.log_bug("removing expired offsets failed")

        self.tasks.begin(internal_topics.sweep_groups(self.context), failed)

    def _note_outcome(self, what: str, error: BaseException | None) -> None:
        if error is None:
            self.health.succeeds(what)
        else:
            self.health.fails(what, error)

    def _remove_files(self, paths: list[Path]) -> None:
        def remove() -> None:
            for path in paths:
                self._filesystem.remove(path)

        def removed(_: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("could not remove deleted files from the disk: %s", error)

        if paths:
            self._thread_pool.submit(remove, removed)

    # -- a turn of the loop ------------------------------------------------------------------------------------------------------

    def drain_thread_pool(self) -> None:
        """Handle finished jobs of pool threads, and events from ZooKeeper."""
        self._thread_pool.drain()
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
            if now >= self.storage.due:
                self.storage.work(now)
            if self.cluster is not None:
                self.cluster.work(now)
            if now >= context.deadlines.due:
                context.deadlines.expire(now)
            if now >= context.groups.due:
                context.groups.expire(now, self._deliver)
                context.produce_turn.end()  # groups that have become empty are written
            context.flusher.end_turn()
            if now >= self.tasks.due:
                self.tasks.work(now)
                context.produce_turn.end()  # a task may have staged something: commits that waited for their topic
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
            groups.deliver(answers)
        except Exception as error:
            self.health.defect("answering the members of a group", error)
            for answer in answers:  # or they would wait until their clients time out
                if not answer.ticket.pending.done:
                    answer.ticket.pending.close_instead("defect")

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
            ("tasks", lambda: self.tasks.work(now)),
        ]
        steps.insert(0, ("the storage watch", lambda: self.storage.work(now)))
        if (cluster := self.cluster) is not None:
            steps.insert(1, ("the cluster", lambda: cluster.work(now)))  # in the order of a turn, see there
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
        self.answer_staged()  # the first slice of a task that one of them has begun: offsets to forget

    def answer_staged(self) -> None:
        """Write and answer what pipelined requests have staged since the turn ended, or tasks after its writes. Staged batches
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
            self.storage.due,
            inf if self.cluster is None else self.cluster.due,
            context.groups.due,
            context.deadlines.due,
            context.flusher.next_deadline(),
            self._cleaner.due,
            self._retention.due,
            self.tasks.due,
        )

    def close(self) -> bool:
        """Flush, checkpoint and release the directory; returns True if the next start does not need to recover."""
        # The order matters: compaction releases its files; then the threads finish their current jobs, because a flush in
        # progress must not run into a closed file; then tasks run to completion without the loop, and only then are logs
        # flushed and closed.
        self._cleaner.stop()
        self._thread_pool.close()
        self.tasks.finish()
        if self.cluster is not None and not self.cluster.has_entered:
            self._directory.close(clean=self._directory.was_clean)  # as it was found: not all logs were opened
            return True
        return self.partitions.close()
