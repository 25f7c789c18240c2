"""This broker's part in a cluster: membership, controller and replication, built in order and driven by the loop.

The engine creates a `Cluster` if `zookeeper.connect` is set. What is outside the process is passed in (`ClusterEnvironment`): the
store, the connections to other brokers, the machine's boot id. Everything runs on the loop's thread.

Events arrive in three ways: from the store (`drain`), from the connections to other brokers (`PeerEvents`), and from timers
(`due`). All of them are acted on in `work`, at the end of a turn, after the turn's writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from uuid import UUID

from logbus_broker.clock import Clock
from logbus_broker.cluster import (
    assignment,
    controller,
    dynamic_config,
    leader_election,
    local_files,
    membership,
    metadata_image,
    metadata_log,
    znodes,
)
from logbus_broker.cluster.store import Store
from logbus_broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log import log_directory, manager, storage_watch
from logbus_broker.log.high_watermark import ReplicatedHighWatermark
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.replication import interfaces, lifecycle, replica_fetcher, replica_manager, replicas
from logbus_broker.replication.leader import Leader
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.cluster_engine")

_SERVED_WITHOUT_LEAD_SESSIONS = 2  # for how many session timeouts an unconfirmed leader still serves consumers

Then = Callable[[BrokerError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEnvironment:
    """What a broker in a cluster needs from its environment. `connect` creates the connections to the other brokers, which report
    events to its argument. `boot_id` is the machine's, empty if that is unknown. `session_ids` are numbers that no earlier
    process of this broker gave to its followers' sessions. `on_fenced` is called with why this process must stop at once.
    `answers` says whether somebody listens at an address; it blocks for a second at most."""

    store: Store
    connect: Callable[[interfaces.PeerEvents], interfaces.Peers]
    boot_id: str
    session_ids: Iterator[int]
    on_fenced: Callable[[BrokerError], None]
    answers: Callable[[metadata_image.Endpoint], bool]


class Cluster:
    """See the module docstring. `attach` is called once, when partitions and their high watermark exist, then `begin`."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: ClusterEnvironment,
        directory: log_directory.LogDirectory,
        *,
        clock: Clock,
        filesystem: FileSystem,
        thread_pool: ThreadPool,
        new_id: Callable[[], UUID],
        ports: Mapping[str, int],
        code_of: Callable[[BrokerError], int],
    ) -> None:
        self._config = config
        self._directory = directory
        self._clock = clock
        self._filesystem = filesystem
        self._thread_pool = thread_pool
        self._connect_text = config.zookeeper_connect
        self.settings = dynamic_config.ImageSettings(config.log, config.broker_id)
        self._on_fenced = environment.on_fenced
        self.store = metadata_log.MetadataHistory(
            environment.store,
            metadata_log.Seen.from_json(directory.metadata_seen) if directory.metadata_seen else None,
            clock,
            timeout_ms=config.zookeeper_session_ms,
            on_accepted=self._fenced,
        )
        self._answers = environment.answers
        self.leader = Leader(
            config,
            self.store,
            clock,
            cluster_id=directory.cluster_id,
            code_of=code_of,
            session_ids=environment.session_ids,
        )
        self.member = membership.ClusterMember(
            self.store,
            _registered_as(config, ports, directory.directory_id),
            cluster_id=directory.cluster_id,
            new_cluster_id=local_files.encode_id(new_id()),
            clock=clock,
            session_timeout_ms=config.zookeeper_session_ms,
            on_fenced=self._fenced,
            answers=self._ask_whether_it_answers,
        )
        self.grace_seconds = _SERVED_WITHOUT_LEAD_SESSIONS * config.zookeeper_session_ms / 1000
        self.is_ready = False  # requests can be served
        self.has_entered = False  # all logs are open
        self._peers = environment.connect(self)
        self._others = membership.OtherBrokers(config.broker_id, config.inter_broker_listener, self._peers.know)
        self._fetchers = replica_fetcher.ReplicaFetcherManager(self._fetcher_of)
        self._is_noting = False
        self._quota = interfaces.ReplicationQuota(config.broker_id)
        self._start: lifecycle.ClusterStartup | None = None
        self._leaving: lifecycle.ControlledShutdown | None = None
        self._wants_to_leave: Callable[[], None] | None = None

    def attach(
        self,
        partitions: manager.PartitionManager,
        high_watermark: ReplicatedHighWatermark,
        storage: storage_watch.StorageWatch,
        *,
        on_ready: Then,
    ) -> None:
        """`on_ready` is called once: when this broker has joined the cluster, or with the reason why it cannot."""
        config, clock = self._config, self._clock
        self._on_ready = on_ready
        waiting_for = high_watermark.on_offline

        def went_offline(partition: Partition) -> None:
            waiting_for(partition)
            self.replica_manager.went_offline(partition)

        # Chained, not replaced: the engine has already set this hook for the requests waiting here; roles must learn as well
        # that this replica cannot lead.
        high_watermark.on_offline = went_offline
        hooks = replicas.FollowerHooks(
            written=high_watermark.written,
            want_flush=high_watermark.request_flush,
            offline=went_offline,
            cut=lambda partition: self._directory.checkpoints.note_cut(partition.topic, partition.index, partition.end_offset),
            refused=storage.refused,
        )
        storage.on_changed = self._impaired
        self.leader.on_suspect = storage.suspect
        self._logs = replicas.ReplicaLogs(partitions, self._directory, self._filesystem, self._thread_pool)
        self.replica_manager = replica_manager.ReplicaManager(
            config.broker_id,
            partitions=partitions,
            logs=self._logs,
            settings=self.settings,
            leader=self.leader,
            fetchers=self._fetchers,
            followed=lambda partition: replicas.FollowedPartition(partition, thread_pool=self._thread_pool, hooks=hooks),
            moving=lambda image: assignment.moving(image.topics.values(), image.brokers),
            store=self.store,
            clock=clock,
        )
        self.controller = controller.ClusterController(
            self.store,
            config.broker_id,
            clock,
            session_timeout_ms=config.zookeeper_session_ms,
            minimum_of=lambda topic: self.settings.insync_min(self.member.image, topic),
            is_unclean_allowed=lambda topic: self.settings.is_unclean_allowed(self.member.image, topic),
            balancing=leader_election.LeaderBalancing(
                interval_seconds=config.leader_imbalance_check_seconds if config.leader_rebalance_enable else inf,
                percentage=config.leader_imbalance_percentage,
            ),
        )
        self.member.elect = lambda keys, is_unclean: self.controller.elect(keys, is_unclean=is_unclean)
        # Hooks between three packages that must not import each other: a follower's progress (leader) moves the visible offset
        # (high watermark); trimming a log here moves the followers' log start offset (leader); a flush of a followed log is
        # reported to its leader (roles).
        self.leader.on_moved = high_watermark.moved
        self.leader.server.on_newer_epoch = lambda key, epoch: self.member.watcher.changed(znodes.CHANGES)
        self.leader.server.is_known_topic = self._is_known_topic
        high_watermark.on_follower_flushed = self.replica_manager.flushed
        partitions.on_trimmed = self._trimmed
        # `_image_changed` runs in order of dependency: addresses before the fetchers that use them, roles before the
        # controller's duty, which may look at what this broker leads.
        self.member.watcher.listen(self._image_changed)

    def begin(self) -> None:
        """Connect to ZooKeeper; everything else follows from the state read there."""
        self.member.begin([self.controller])
        self._start = lifecycle.ClusterStartup(
            self.member,
            self.replica_manager,
            self._logs,
            self._directory,
            self.settings,
            self._thread_pool,
            self._clock,
            connect=self._connect_text,
            history=self.store,
            then=self._started,
        )

    def _ask_whether_it_answers(self, address: metadata_image.Endpoint, then: Callable[[bool], None]) -> None:
        self._thread_pool.submit(lambda: self._answers(address), lambda answers, error: then(bool(answers) and error is None))

    def leave(self, then: Callable[[], None]) -> None:
        """Controlled shutdown: `then` is called once no other broker depends on this process, or at once on a second request.
        Safe in a signal handler."""
        if not self.is_ready or self._wants_to_leave is not None:
            then()
        else:
            self._wants_to_leave = then

    def _begin_to_leave(self, then: Callable[[], None]) -> None:
        seconds_max = self._config.controlled_shutdown_ms_max / 1000 if self._config.controlled_shutdown_enable else 0.0
        self._leaving = lifecycle.ControlledShutdown(
            self.member,
            self.replica_manager,
            self.settings,
            self._clock,
            seconds_max=seconds_max,
            session_seconds=self._config.zookeeper_session_ms / 1000,
            then=then,
        )

    # Followers of partitions led here are served by `leader`; fetchers are the opposite direction

    def _fetcher_of(self, leader: int) -> replica_fetcher.ReplicaFetcher:
        return replica_fetcher.ReplicaFetcher(
            leader,
            self._config,
            incarnation=self.member.registration.incarnation,
            cluster_id=self.member.registration.cluster_id,
            peers=self._peers,
            monotonic=self._clock.monotonic,
            quota=self._quota,
        )

    # Connections to other brokers

    def reached(self, broker: int) -> None:
        """A connection is open and the broker has answered on it."""
        self._others.reached(broker)
        self._fetchers.reached(broker)
        self.controller.suspect(self._others.suspects)

    def closed(self, broker: int) -> None:
        """The connection to the broker is lost."""
        self._fetchers.closed(broker)

    def refused(self, broker: int) -> None:
        """Nothing listens at the broker's address."""
        self._others.refused(broker, self.member.image, self._clock.monotonic())
        self.controller.suspect(self._others.suspects)

    # The image

    def _image_changed(self, image: metadata_image.MetadataImage, delta: metadata_image.MetadataDelta) -> None:
        # First: whatever this broker does because of the image, it has seen.
        self.store.saw(image.position, self.member.watcher.newest_entry_birth)
        self._directory.metadata_seen = self.store.newest_seen.to_json()
        self._note_seen()
        self._learn_quotas(image)
        self.leader.learn_brokers(image)
        self._others.learn(image)
        self.controller.suspect(self._others.suspects)
        self.replica_manager.image_changed(image, delta)
        self.controller.image_changed(image)

    def _note_seen(self) -> None:
        """On the disk, a moment later; what arrives meanwhile goes with the next note."""
        if not self._is_noting and self._directory.is_seen_to_be_noted:
            self._is_noting = True
            self._thread_pool.store(self._directory.note_seen, self._noted)

    def _noted(self, _: object, error: BaseException | None) -> None:
        self._is_noting = False
        if error is None:
            self._note_seen()
        else:
            logger.error("could not note the metadata that was seen: %s", error)

    def _learn_quotas(self, image: metadata_image.MetadataImage) -> None:
        """As in Kafka, lists of replicas count only where a topic has one of its own; the rates are this broker's."""
        topics = [
            (topic, self.settings.of_topic(image, name)) for name in image.topic_settings if (topic := image.topics.get(name))
        ]
        broker = self.settings.of_topic(image, "")
        led = {topic.topic_id.bytes: config.leader_throttled_replicas for topic, config in topics}
        followed = {topic.topic_id.bytes: config.follower_throttled_replicas for topic, config in topics}
        self.leader.server.quota.learn(broker.leader_throttled_rate, led)
        if self._quota.learn(broker.follower_throttled_rate, followed):
            self._fetchers.quota_changed()

    def _trimmed(self, partition: Partition) -> None:
        if partition.is_led:
            self.leader.log_start_moved(partition)

    def _impaired(self, partition: Partition) -> None:
        """Its records can no longer be stored here, or can be again."""
        (self.leader if partition.is_led else self.replica_manager).impaired(partition)

    def _is_known_topic(self, topic_id: bytes) -> bool:
        return any(topic.topic_id.bytes == topic_id for topic in self.member.image.topics.values())

    # The loop

    @property
    def due(self) -> float:
        """When there is work to do even if nothing arrives."""
        first = min(self.member.due, self.replica_manager.due, self.leader.due, self._fetchers.due, self._peers.due)
        if self.is_ready:
            first = min(first, self.controller.due)
        for stage in (self._start, self._leaving):
            if stage is not None:
                first = min(first, stage.due)
        return first

    def drain(self) -> None:
        """Handle ZooKeeper's answers and events."""
        self.store.drain()

    def work(self, now: float) -> None:
        """Called at the end of a turn, after its writes."""
        # The session first: this process may turn out to be fenced. Roles before startup and leaving, which wait for what roles
        # have done. Answering the leader's followers comes after everything that writes: one answer then carries all that this
        # turn has changed.
        self.member.work(now)
        self.replica_manager.work(now)
        if self._start is not None:
            self._start.work(now)
        if self._wants_to_leave is not None and self._leaving is None:
            self._begin_to_leave(self._wants_to_leave)
        if self._leaving is not None:
            self._leaving.work(now)
        if self.is_ready and now >= self.controller.due:
            self.controller.work()
        self.leader.work(now)
        if now >= self._fetchers.due:
            self._fetchers.work(now)
        if now >= self._peers.due:
            self._peers.work(now)

    def _started(self, error: BrokerError | None) -> None:
        self._start = None
        if error is None:
            self.leader.server.cluster_id = self.member.registration.cluster_id
            self.is_ready = self.has_entered = True
            self.replica_manager.work(self._clock.monotonic())
        self._on_ready(error)

    def _fenced(self, error: BrokerError) -> None:
        logger.critical("%s", error)
        self.is_ready = False
        self._on_fenced(error)

    def troubles(self) -> list[str]:
        """Current problems, one human-readable line each."""
        lines = []
        if not self.is_ready:
            lines.append("this broker has not joined its cluster yet")
        if self._wants_to_leave is not None:
            lines.append("this broker is being stopped and hands over what it leads")
        if self.store.refusal:
            lines.append(self.store.refusal)
        elif self.member.away_since is not None:
            seconds = self._clock.monotonic() - self.member.away_since
            lines.append(
                f"ZooKeeper at {self._connect_text} has not answered for {seconds:.0f} s: partitions led here are served as "
                "long as their followers are connected, and no metadata can be changed"
            )
        return lines

    # Used by handlers

    def why_not(self, partition: Partition) -> BrokerError | None:
        """Why a turn may neither write to the partition nor acknowledge; None if it may."""
        if partition.is_led and self.leader.takes_records(partition):
            return None
        if partition.impaired_reason:
            return StorageError(f"this broker cannot store {partition.name}: {partition.impaired_reason}")
        return NotLeaderOrFollower(f"this broker cannot confirm that it leads {partition.name}")

    def serves_consumers(self, partition: Partition) -> bool:
        """Whether this broker's view of a partition is recent enough to serve to consumers."""
        return self.leader.serves_consumers(partition, self.grace_seconds)


def _registered_as(config: BrokerConfig, ports: Mapping[str, int], directory_id: str) -> metadata_image.BrokerNode:
    """What the others learn of this broker when it registers. `ports` are the actual ports, by listener."""
    return metadata_image.BrokerNode(
        broker_id=config.broker_id,
        incarnation=-1,
        endpoints={
            name: metadata_image.Endpoint(
                host=listener.host, port=listener.port, security_protocol=config.protocol_of(name).value
            )
            # Register the advertised address: the bound one may be the wildcard address, or a port that is mapped to
            # another.
            for name, listener in config.advertised_at(ports).items()
        },
        rack=config.rack,
        directory_id=directory_id,
    )
