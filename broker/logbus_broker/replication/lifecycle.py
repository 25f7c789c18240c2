"""How a broker joins its cluster (`ClusterStartup`) and leaves it (`ControlledShutdown`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from math import inf

from logbus_broker.clock import Clock
from logbus_broker.cluster import dynamic_config, membership, metadata_image, metadata_log, store, topic_registry
from logbus_broker.errors import BrokerError, StartupError
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.replication.interfaces import TopicIdPartition
from logbus_broker.replication.replica_manager import ReplicaManager
from logbus_broker.replication.replicas import AssignedReplica, LogIntegrity, ReplicaLogs, state_at_start

logger = logging.getLogger("broker.replication")

_LOG_SECONDS_FIRST = 2.0  # before the first log line about waiting
_LOG_SECONDS = 30.0  # between two of these lines
_START_RETRY_SECONDS = 1.0
_REFUSED_SECONDS_MAX = 10.0  # a server of the ensemble may lag behind, and then its state looks like one from a backup

Then = Callable[[BrokerError | None], None]


class _StartStep(Enum):
    ENTERING = "reading the cluster id"
    READING = "reading the cluster metadata"
    OPENING = "opening logs"
    SETTLING = "reporting replicas that may have lost records"
    NOTING = "recording that in the data directory"
    REGISTERING = "registering"
    OVER = "started"


class ClusterStartup:
    """In this order, each step once the previous one is done:

    1. cluster id and incarnation (registration.py); a new data directory joins the cluster
    2. the image, with the incarnation in it: so everything decided about this broker before that is known
    3. the logs of its replicas are opened and recovered; data of topics that no longer exist is removed from the disk
    4. what it cannot vouch for is reported, by compare-and-set on each partition's state (`state_at_start`); then the data
       directory notes the number of this start, and in which boot of the machine it was settled
    5. it is registered: from now on it may be elected, and other brokers count on it
    6. roles are assigned, and the listener answers

    Until then no client can reach it. While ZooKeeper is away it waits, and logs that. `then` is called once: with None when the
    broker is up, or with the reason why it cannot be."""

    def __init__(
        self,
        member: membership.ClusterMember,
        replica_manager: ReplicaManager,
        logs: ReplicaLogs,
        directory: LogDirectory,
        settings: dynamic_config.ImageSettings,
        thread_pool: ThreadPool,
        clock: Clock,
        *,
        connect: str,
        history: metadata_log.MetadataHistory,
        then: Then,
    ) -> None:
        self._member = member
        self._history = history
        self._replica_manager = replica_manager
        self._logs = logs
        self._directory = directory
        self._settings = settings
        self._thread_pool = thread_pool
        self._connect = connect  # for messages
        self._then = then
        self._step = _StartStep.ENTERING
        self._log_at = clock.monotonic() + _LOG_SECONDS_FIRST
        self._refused_since: float | None = None
        self._raised: dict[TopicIdPartition, int] = {}  # leader epochs that this process began itself
        self._asked_of: metadata_image.MetadataImage | None = None  # the image the last write was based on
        self._ask_again_at = -inf
        member.registration.enter(self._entered)

    @property
    def due(self) -> float:
        """When `work` has something to do even if nothing else happens."""
        if self._step is _StartStep.OVER:
            return inf
        refused_until = inf if self._refused_since is None else self._refused_since + _REFUSED_SECONDS_MAX
        ask_again_at = self._ask_again_at if self._step is _StartStep.SETTLING else inf
        return min(self._log_at, refused_until, ask_again_at)

    def work(self, now: float) -> None:
        """At the end of a turn: continue if the current step is done."""
        if now >= self._log_at:
            self._log_at = now + _LOG_SECONDS
            if self._member.away_since is not None:
                logger.warning("waiting for ZooKeeper at %s: no answer", self._connect)
            else:
                why = self._member.watcher.unanswered
                logger.warning("still starting: %s%s", self._step.value, f": {why}" if why else "")
        if not self._history.refusal:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since >= _REFUSED_SECONDS_MAX and self._step is not _StartStep.OVER:
            self._fail(StartupError(self._history.refusal))
        image = self._member.image
        if self._step is _StartStep.READING and self._has_read(image):
            try:
                self._begin_opening(image)
            except OSError as error:  # what was done so far can safely be repeated
                self._fail(error)
        if self._step is _StartStep.OPENING and not self._replica_manager.is_opening:
            self._step = _StartStep.SETTLING
        if self._step is _StartStep.SETTLING and (image is not self._asked_of or now >= self._ask_again_at):
            self._settle(image, now)

    def _fail(self, error: BaseException) -> None:
        """What is not one of the broker's own errors is the disk's."""
        self._step = _StartStep.OVER
        self._then(error if isinstance(error, BrokerError) else StartupError(f"the data directory: {error}"))

    # 1: who we are

    def _entered(self, error: BrokerError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        cluster_id = self._member.registration.cluster_id
        self._thread_pool.store(lambda: self._directory.join(cluster_id), self._joined)

    def _joined(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._step = _StartStep.READING
            self._member.watcher.tick()  # without a cluster id nothing could be read until now

    # 2 and 3: what is on this disk

    def _has_read(self, image: metadata_image.MetadataImage) -> bool:
        registration = self._member.registration
        return self._member.watcher.is_known and image.incarnations.get(self._member.broker_id, -1) >= registration.incarnation

    def _begin_opening(self, image: metadata_image.MetadataImage) -> None:
        on_disk = self._logs.found()
        assigned = {
            (topic.name, index): topic
            for topic in image.topics.values()
            for index, replicas in enumerate(topic.replicas)
            if self._member.broker_id in replicas
        }
        # That an incarnation was raised here proves nothing: a start that is refused raises it, too, and may be repeated.
        was_member = self._member.registration.was_member
        if not was_member and on_disk and not any((name, index) in assigned for name, index, _ in on_disk):
            self._fail(
                StartupError(
                    f"ZooKeeper at {self._connect} knows neither this broker nor any of the {len(on_disk)} partitions in "
                    f"{self._directory.path}: set zookeeper.connect to the servers and the path of their cluster, restore "
                    "ZooKeeper's data, or set log.dirs to an empty directory"
                )
            )
            return
        names = {topic.topic_id.bytes: topic.name for topic in image.topics.values()}
        for name, index, topic_id in on_disk:
            if name in image.unreadable:
                logger.error("%s-%d: its topic in ZooKeeper cannot be read; restore it and restart this broker", name, index)
                continue
            topic = assigned.get((name, index))
            if topic is None or topic_id not in (None, topic.topic_id.bytes):
                # Without a topic id, with that of a topic of another name (a copy), or with one unknown to a ZooKeeper that has
                # never seen this broker, or that may be older than this disk: not ours to remove.
                is_gone = topic_id is not None and (names[topic_id] == name if topic_id in names else was_member)
                (self._logs.remove if is_gone and self._history.is_trusted else self._logs.set_aside)(name, index)
        replicas = [
            AssignedReplica(
                topic=topic_registry.Topic(name=name, topic_id=topic.topic_id, partition_count=topic.partition_count),
                index=index,
                config=self._settings.of_topic(image, name),
            )
            for (name, index), topic in assigned.items()
        ]
        self._logs.forget_missing(replicas, ((name, index) for name, index, _ in on_disk))
        self._replica_manager.open()
        self._step = _StartStep.OPENING

    # 4: what we cannot vouch for

    def _settle(self, image: metadata_image.MetadataImage, now: float) -> None:
        changes = self._changes(image)
        self._asked_of, self._ask_again_at = image, now + _START_RETRY_SECONDS
        if not changes:
            self._step = _StartStep.NOTING
            self._ask_again_at = inf
            self._thread_pool.store(partial(self._directory.note_start, self._member.registration.incarnation), self._noted)
        else:
            self._commit(changes[: metadata_log.STATES_MAX])

    def _commit(self, changes: list[metadata_image.StateChange]) -> None:
        for change in changes:
            if change.state.leader == self._member.broker_id:
                self._raised[change.topic_id.bytes, change.index] = change.state.leader_epoch

        # Whatever the outcome, the image will show it, or the same is proposed again.
        self._member.store.commit(metadata_log.state_writes(changes), lambda outcome: None)

    def _changes(self, image: metadata_image.MetadataImage) -> list[metadata_image.StateChange]:
        me, changes = self._member.broker_id, []
        for topic, index, state, minimum in _partitions(image, self._settings):
            if me not in topic.replicas[index] or state.version < 0:
                continue
            if state.leader == me and self._raised.get((topic.topic_id.bytes, index)) == state.leader_epoch:
                continue
            replica = self._replica_manager.local_replica(topic, index)
            partition = None if replica is None else replica.partition
            kept = self._kept(partition, was_on_disk=replica is not None and replica.was_on_disk)
            end = None if partition is None or kept is LogIntegrity.GONE else _end_of(me, partition)
            new = state_at_start(me, state, kept, minimum, end)
            if new != state:
                if kept is not LogIntegrity.WHOLE and me in state.isr:
                    _log_what_is_missing(topic.name, index, kept, new.isr, is_last=new.isr == state.isr)
                changes.append(_next_state(topic, index, state, new))
        return changes

    def _kept(self, partition: Partition | None, *, was_on_disk: bool) -> LogIntegrity:
        if partition is None or not was_on_disk or partition.log.offline_reason:
            return LogIntegrity.GONE
        # This is not the directory that ran last. What it has was true once.
        if self._directory.last_start < self._member.registration.last_start:
            return LogIntegrity.PERHAPS_LESS
        # After a kill nothing is torn but, at most, the last write; whoever finds more to cut off has a damaged disk. The two are
        # not told apart: a replica that leaves for nothing has caught up in a moment.
        if partition.log.recovery.truncated_bytes:
            return LogIntegrity.PERHAPS_LESS
        if self._directory.kept_writes or partition.log.config.acks_all_waits_for_flush:
            return LogIntegrity.WHOLE
        return LogIntegrity.PERHAPS_LESS

    def _noted(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._step = _StartStep.REGISTERING
            self._member.registration.register(self._registered)

    # 5 and 6: registered, with roles

    def _registered(self, error: BrokerError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._step = _StartStep.OVER
        self._replica_manager.begin()
        self._then(None)


def _end_of(broker_id: int, partition: Partition) -> metadata_image.LogEnd:
    log = partition.log
    return metadata_image.LogEnd(broker=broker_id, leader_epoch=log.epochs.written.latest, end_offset=log.end_offset)


def _log_what_is_missing(topic: str, index: int, kept: LogIntegrity, isr: Sequence[int], *, is_last: bool) -> None:
    if not is_last:
        logger.warning(
            "%s-%d: %s after the last stop, so this broker leaves its in-sync set to %s", topic, index, kept.value, list(isr)
        )
    elif kept is LogIntegrity.GONE:
        logger.critical(
            "%s-%d: its log is gone, and no other broker has all of it: it has no leader until one that was in sync returns, "
            "or until an unclean election",
            topic,
            index,
        )
    else:
        logger.error(
            "%s-%d: %s after the last stop, and no other broker has more: what only this one had acknowledged may be lost",
            topic,
            index,
            kept.value,
        )


WITHDRAW_SECONDS = 2.0
WITHDRAW_RETRY_SECONDS = 0.5


class _ShutdownStep(Enum):
    HANDING_OVER = "handing over what it leads"
    WITHDRAWING = "leaving in-sync sets"
    OVER = "stopped"


class ControlledShutdown:
    """Nothing is lost by it, not even what was acknowledged with acks=1:

    1. the broker announces that it is leaving: it is no longer elected, and joins no in-sync replicas
    2. the controller asks it to hand over what it leads; it continues to serve until it leads nothing that another could lead
    3. it stops fetching, and removes itself from the in-sync replicas of what others lead, so that no leader waits for a
       follower that is gone. Not if the leader is dead: the other members might never come back, and this broker has everything

    All of this has a time limit (logbus.controlled.shutdown.max.ms): what is left then is treated as after a kill. None of it is
    possible without ZooKeeper, so nothing is waited for once that has been away for a session. `then` is called once, when the
    process may stop."""

    def __init__(
        self,
        member: membership.ClusterMember,
        replica_manager: ReplicaManager,
        settings: dynamic_config.ImageSettings,
        clock: Clock,
        *,
        seconds_max: float,
        session_seconds: float,
        then: Callable[[], None],
    ) -> None:
        self._member = member
        self._replica_manager = replica_manager
        self._settings = settings
        self._session_seconds = session_seconds
        self._then = then
        self._step = _ShutdownStep.HANDING_OVER
        self._is_announced = False
        self._until = clock.monotonic() + seconds_max
        self._asked_of: metadata_image.MetadataImage | None = None
        self._ask_again_at = -inf
        member.registration.leave(self._announced)

    @property
    def due(self) -> float:
        if self._step is _ShutdownStep.OVER:
            return inf
        until = min(self._until, self._cut_off_at)
        return until if self._step is _ShutdownStep.HANDING_OVER else min(until, self._ask_again_at)

    @property
    def _cut_off_at(self) -> float:
        """When ZooKeeper has been away for a session, if it does not come back."""
        away_since = self._member.away_since
        return inf if away_since is None else away_since + self._session_seconds

    def _announced(self, error: BrokerError | None) -> None:
        self._is_announced = True
        if error is not None:
            logger.error("could not announce the controlled shutdown: %s", error)
            self._until = -inf

    def work(self, now: float) -> None:
        """At the end of a turn: continue if the current step is done."""
        image = self._member.image
        if self._step is not _ShutdownStep.OVER and now >= self._cut_off_at:
            logger.warning("ZooKeeper is away: this broker stops without handing over what it leads")
            self._replica_manager.stop_following()
            self._end()
        if self._step is _ShutdownStep.HANDING_OVER and (
            now >= self._until or (self._is_announced and not self._has_successors(image))
        ):
            self._step = _ShutdownStep.WITHDRAWING
            self._until = now + WITHDRAW_SECONDS
            self._replica_manager.stop_following()
        if self._step is _ShutdownStep.WITHDRAWING:
            self._withdraw(image, now)

    def _end(self) -> None:
        self._step = _ShutdownStep.OVER
        self._then()

    def _has_successors(self, image: metadata_image.MetadataImage) -> bool:
        """Whether some partition led here has another replica that is registered and not leaving."""
        me = self._member.broker_id
        staying = image.brokers.keys() - image.leaving - {me}
        return any(
            state.leader == me and not staying.isdisjoint(replicas)
            for topic in image.topics.values()
            if topic.name not in image.deleting
            for replicas, state in zip(topic.replicas, topic.states, strict=True)
        )

    def _withdraw(self, image: metadata_image.MetadataImage, now: float) -> None:
        if image is self._asked_of and now < min(self._ask_again_at, self._until):
            return
        changes = self._changes(image)
        if not changes or now >= self._until:
            self._end()
            return
        self._asked_of, self._ask_again_at = image, now + WITHDRAW_RETRY_SECONDS
        for batch in store.in_batches(changes, metadata_log.STATES_MAX):
            self._member.store.commit(metadata_log.state_writes(batch), lambda outcome: None)

    def _changes(self, image: metadata_image.MetadataImage) -> list[metadata_image.StateChange]:
        me, changes = self._member.broker_id, []
        for topic, index, state, minimum in _partitions(image, self._settings):
            if me not in state.isr or state.leader == me or state.leader not in image.brokers:
                continue
            isr = tuple(broker for broker in state.isr if broker != me)
            eligible = metadata_image.eligible_after(state, isr, minimum)
            successor = None if state.handover_to == me else state.handover_to
            new = replace(state, isr=isr, eligible=eligible, handover_to=successor)
            changes.append(_next_state(topic, index, state, new))
        return changes


def _partitions(
    image: metadata_image.MetadataImage, settings: dynamic_config.ImageSettings
) -> Iterator[tuple[metadata_image.ClusterTopic, int, metadata_image.PartitionState, int]]:
    """Every partition of topics that are not being deleted, with its state and its topic's min.insync.replicas."""
    for topic in image.topics.values():
        if topic.name not in image.deleting:
            minimum = settings.insync_min(image, topic.name)
            for index, state in enumerate(topic.states):
                yield topic, index, state, minimum


def _next_state(
    topic: metadata_image.ClusterTopic, index: int, old: metadata_image.PartitionState, new: metadata_image.PartitionState
) -> metadata_image.StateChange:
    new = replace(new, version=old.version + 1)
    return metadata_image.StateChange(topic=topic.name, topic_id=topic.topic_id, index=index, state=new)
