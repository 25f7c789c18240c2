"""How the data directory of a standalone broker becomes that of the first broker of a cluster; and what is lost if a state of
ZooKeeper is accepted that is older than a broker's disk, and the acceptance itself.

Records, groups and their offsets stay where they are: the logs of both are the same, and each has its topic's id. What moves to
ZooKeeper is what a standalone broker keeps in small files: topics with their settings, settings of brokers, users, ACLs and
quotas, and which producer ids are taken. The cluster gets the directory's own id, so it has to be a new one: two clusters with
data may have topics of the same name, and cannot become one.

In this order, for a broker that was stopped cleanly:

1. the marker `joining`; then meta.properties says that the directory is a cluster's. It cannot be served alone any more, so what
   is moved does not change meanwhile
2. everything is written to ZooKeeper, unless it is there already
3. a note that this directory vouches for everything in it; then the marker is removed. It can be served in its cluster
4. the small files get the suffix `.joined`: no broker reads them any more

A failure anywhere leaves what the same command, run again, completes.

A broker refuses such a state (metadata_log.py). The operator sees here, for one broker's directory, how far the two are apart
and which partitions the next start would set aside, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from logbus_broker.clock import Clock
from logbus_broker.cluster import (
    dynamic_config,
    local_files,
    metadata_image,
    metadata_log,
    metadata_watcher,
    metadata_writes,
    producer_ids,
    registration,
    security_store,
    store,
    topic_registry,
    znodes,
)
from logbus_broker.cluster.metadata_log import Seen
from logbus_broker.errors import StartupError, storage_errors
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.log_directory import CLEAN_MARKER, JOINING, LogDirectory
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.security.state import AUDIT_TOPIC, SecurityState
from logbus_broker.settings import BrokerConfig

TOPICS_AT_ONCE = 100  # created in one session of the command, each of which has a minute
_FIRST_START = 0
_SMALL_FILES = (
    topic_registry.TOPICS_FILE,
    dynamic_config.BROKER_CONFIGS_FILE,
    security_store.SECURITY_FILE,
    producer_ids.PRODUCER_IDS_FILE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneMetadata:
    """What a standalone broker keeps beside its logs. `settings` are those of brokers, by the name of their znode."""

    topics: Sequence[topic_registry.Topic]
    settings: Mapping[str, Mapping[str, str]]
    security: SecurityState
    next_producer_id: int

    def lines(self) -> list[str]:
        """For the operator."""
        counts = {
            "topics": len(self.topics),
            "partitions": sum(topic.partition_count for topic in self.topics),
            "settings of brokers": sum(map(len, self.settings.values())),
            "users": len({user for user, _ in self.security.credentials}),
            "ACLs": len(self.security.acls),
            "quotas": len(self.security.quotas),
        }
        return [f"{count:>8,} {what}" for what, count in counts.items()]


class JoiningDirectory:
    """The data directory of a stopped broker, standalone or on its way into a cluster. StartupError for any other, and after an
    unclean stop, as only a start finds out what the logs then hold."""

    def __init__(self, config: BrokerConfig, filesystem: FileSystem, new_id: Callable[[], UUID]) -> None:
        path = self._path = Path(config.log_dirs)
        is_member = local_files.belongs_to_cluster(filesystem, path)
        directory = LogDirectory.inspect(path, broker_id=config.broker_id, filesystem=filesystem, in_cluster=is_member)
        names = filesystem.list_names(path)
        self.is_joining = JOINING in names
        if is_member and not self.is_joining:
            raise StartupError(f"{path} belongs to cluster {directory.cluster_id} already: there is nothing to do")
        if CLEAN_MARKER not in names:
            raise StartupError(
                f"the broker of {path} was not stopped cleanly: start it once more, without zookeeper.connect, and stop it by "
                "SIGTERM"
            )
        self.cluster_id = directory.cluster_id
        self._config = config
        self._directory = directory
        self._filesystem = filesystem
        self._new_id = new_id

    def metadata(self) -> StandaloneMetadata:
        overrides = dynamic_config.BrokerOverrides(self._directory)
        names = {
            dynamic_config.Scope.EVERY_BROKER: metadata_image.EVERY_BROKER,
            dynamic_config.Scope.THIS_BROKER: str(self._config.broker_id),
        }
        return StandaloneMetadata(
            topics=list(map(_in_cluster, topic_registry.TopicRegistry(self._directory, self._new_id))),
            settings={name: values for scope, name in names.items() if (values := overrides.of(scope))},
            security=security_store.LocalSecurity(self._directory).state,
            next_producer_id=producer_ids.next_local_block(self._directory),
        )

    def begin(self, metadata: StandaloneMetadata) -> None:
        """Step 1."""
        with storage_errors(f"write in {self._path}"):
            if not self.is_joining:
                self._filesystem.write_bytes(self._path / JOINING, b"")
                self._filesystem.sync_directory(self._path)
                self.is_joining = True
            if not local_files.belongs_to_cluster(self._filesystem, self._path):
                local_files.become_member(self._filesystem, self._path, self._new_id)
        for topic in metadata.topics:
            if topic.name == AUDIT_TOPIC:
                for index in range(1, topic.partition_count):
                    self._directory.make_partition(topic.name, index, topic.topic_id)
        self._directory.sync()

    def end(self, boot_id: str) -> None:
        """Steps 3 and 4."""
        self._directory.vouch(_FIRST_START, boot_id)
        with storage_errors(f"write in {self._path}"):
            self._filesystem.remove(self._path / JOINING)
            self._filesystem.sync_directory(self._path)
            present = set(self._filesystem.list_names(self._path))
            for name in present.intersection(_SMALL_FILES):
                self._filesystem.rename(self._path / name, self._path / f"{name}.joined")

    def cluster_topic(self, topic: topic_registry.Topic, clock: Clock) -> metadata_image.ClusterTopic:
        """The topic with this broker as the only replica of each partition. The leader epoch is that of its log: the broker's
        next start begins a higher one."""
        me = self._config.broker_id
        states = tuple(
            metadata_image.PartitionState(leader=me, leader_epoch=self._epoch(topic, index, clock), isr=(me,), version=0)
            for index in range(topic.partition_count)
        )
        return metadata_image.ClusterTopic(
            name=topic.name, topic_id=topic.topic_id, replicas=((me,),) * topic.partition_count, version=0, states=states
        )

    def _epoch(self, topic: topic_registry.Topic, index: int, clock: Clock) -> int:
        name = f"{topic.name}-{index}"
        path = self._directory.partition_path(topic.name, index)
        if not self._filesystem.is_directory(path) or self._directory.topic_id(topic.name, index) != topic.topic_id:
            raise StartupError(f"{path} is missing, or another topic's: restore it from a copy, or delete topic {topic.name}")
        log = PartitionLog.open(
            path,
            config=self._config.log,
            filesystem=self._filesystem,
            clock=clock,
            clean=True,
            recovery_point=self._directory.checkpoints.recovery_point(topic.name, index),
            log_start_offset=self._directory.checkpoints.log_start_offset(topic.name, index),
            is_replica=True,
        )
        if log.offline_reason:
            raise StartupError(f"{name}: {log.offline_reason}")
        epoch = log.epochs.current
        log.abandon(f"{name} was only looked at")
        return epoch


def _in_cluster(topic: topic_registry.Topic) -> topic_registry.Topic:
    """The audit topic is the broker's own, and has more partitions in a cluster: each broker writes to one that it leads."""
    if topic.name != AUDIT_TOPIC:
        return topic
    return replace(topic, partition_count=max(topic.partition_count, topic_registry.AUDIT_PARTITIONS))


# Step 2: scripts for ZooKeeper


def check_cluster(cluster_id: str, *, is_joining: bool) -> store.Script[bool]:
    """Whether the cluster exists already, as the directory's own. StartupError if it is another, or if a copy of this directory
    has joined before."""
    node = yield from store.read(znodes.CLUSTER_ID)
    if isinstance(node, store.NoNode):
        return False
    stored = znodes.decode_cluster_id(node.data)
    if stored != cluster_id:
        raise StartupError(
            f"there is a cluster at this path already, {stored}: a standalone broker can only begin a new one. Set "
            "zookeeper.connect to another path (HOST:PORT/PATH), or copy the topics over with a consumer and a producer"
        )
    if not is_joining:
        raise StartupError(f"a copy of this data directory has joined before, as cluster {stored}")
    return True


def make_cluster(cluster_id: str) -> store.Script[bool]:
    """Its paths and its id; True."""
    yield from registration.make_base_paths()
    yield from store.commit([store.Create(path=znodes.CLUSTER_ID, data=znodes.encode_cluster_id(cluster_id))])
    if not (yield from check_cluster(cluster_id, is_joining=True)):
        raise store.AnswerLost("could not create the cluster id: try again")
    return True


def create_topics(topics: Sequence[tuple[metadata_image.ClusterTopic, Mapping[str, str]]]) -> store.Script[int]:
    """Those that do not exist yet; how many there are."""
    for topic, settings in topics:
        node = yield from store.read(znodes.topic_path(topic.name))
        if isinstance(node, store.NoNode) or not _is_whole(topic, node):
            yield from metadata_writes.create_topic(topic, settings)
    return len(topics)


def _is_whole(topic: metadata_image.ClusterTopic, node: store.Node) -> bool:
    stored = znodes.decode_topic(topic.name, node.data, node.version)
    return stored.topic_id == topic.topic_id and stored.partition_count == topic.partition_count


def write_rest(metadata: StandaloneMetadata) -> store.Script[bool]:
    """Everything else; True."""
    for name, values in metadata.settings.items():
        yield from metadata_writes.change_broker_settings(name, _replaced_by(values))
    image = yield from metadata_watcher.read_image(-1)
    _, is_stored = yield from metadata_writes.change_security(image.security, metadata.security)
    block = yield from store.read(znodes.PRODUCER_ID_BLOCK)
    if not is_stored or isinstance(block, store.NoNode):
        raise store.AnswerLost("ZooKeeper did not take everything: try again")
    end = metadata.next_producer_id
    if not block.data or znodes.decode_producer_id_block(block.data).end < end:
        taken = znodes.ProducerIdBlock(broker_id=-1, start=0, end=end)
        data = znodes.encode_producer_id_block(taken)
        outcome = yield from store.commit([store.Set(path=znodes.PRODUCER_ID_BLOCK, data=data, version=block.version)])
        if not isinstance(outcome, store.Committed):
            raise store.AnswerLost(f"ZooKeeper did not take the producer ids: {outcome}; try again")
    return True


def _replaced_by(values: Mapping[str, str]) -> dynamic_config.Rewrite:
    return lambda _: values


_ID_BITS = 24  # more producer ids than a cluster hands out in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ZooKeeper's newest state beside what one data directory has seen and holds. `unknown` are its partitions that ZooKeeper
    does not assign to this broker: a start sets them aside, and keeps them."""

    in_zookeeper: Seen
    newest_seen: Seen | None
    topics: int
    unknown: Sequence[str]

    @property
    def is_older(self) -> bool:
        """Whether ZooKeeper's log certainly lacks something that this directory has seen. A log that has gone on since it was
        restored does not look older; a broker's start finds that out by the entry itself."""
        if self.newest_seen is None:
            return False
        return self.in_zookeeper.place < self.newest_seen.place

    def lines(self) -> list[str]:
        lines = [
            f"ZooKeeper:       {_entry_text(self.in_zookeeper)}, {self.topics} topics",
            f"this directory:  has seen {'nothing yet' if self.newest_seen is None else _entry_text(self.newest_seen)}",
        ]
        if self.unknown:
            lines.append(f"{len(self.unknown)} partitions here are unknown to ZooKeeper, or not this broker's:")
            lines += [f"    {name}" for name in self.unknown]
        return lines


def compare(image: metadata_image.MetadataImage, in_zookeeper: Seen, directory: LogDirectory, broker_id: int) -> Comparison:
    """What a start with this image would do. Pure, but for the names read from the directory."""
    assigned = {
        (topic.name, index): topic.topic_id
        for topic in image.topics.values()
        for index, replicas in enumerate(topic.replicas)
        if broker_id in replicas
    }
    unknown = [
        path.name
        for name, index, path in sorted(directory.partitions())
        if assigned.get((name, index)) != directory.topic_id(name, index)
    ]
    newest_seen = Seen.from_json(directory.metadata_seen) if directory.metadata_seen else None
    return Comparison(in_zookeeper=in_zookeeper, newest_seen=newest_seen, topics=len(image.topics), unknown=unknown)


def newest() -> store.Script[tuple[metadata_image.MetadataImage, Seen]]:
    """What ZooKeeper holds, and its newest entry."""
    generation = yield from store.read(znodes.GENERATION)
    positions = metadata_log.entry_positions((yield from store.children(znodes.CHANGES)))
    position = positions[-1] if positions else -1
    entry = yield from store.read(metadata_log.entry_path(max(0, position)))
    image = yield from metadata_watcher.read_image(position)
    number = znodes.decode_generation(generation.data) if isinstance(generation, store.Node) else 0
    birth = entry.birth if isinstance(entry, store.Node) else (0, 0)
    return image, Seen(position=position, birth=birth, generation=number)


def accept(now_seconds: int) -> store.Script[int]:
    """Make ZooKeeper's state the one that brokers obey; returns its generation. Producer ids jump ahead: those handed out after
    the backup are in the logs, and their producers' batches would be taken for duplicates."""
    generation, block = yield from store.read_all([znodes.GENERATION, znodes.PRODUCER_ID_BLOCK])
    if isinstance(generation, store.NoNode) or isinstance(block, store.NoNode):
        raise StartupError("there is no cluster at this path of ZooKeeper: set zookeeper.connect to its servers and path")
    # Seconds, so that it is higher than any earlier one, also where ZooKeeper has forgotten that.
    number = max(now_seconds, znodes.decode_generation(generation.data) + 1)
    start = number << _ID_BITS
    ids = znodes.ProducerIdBlock(broker_id=-1, start=start, end=start + producer_ids.BLOCK_IDS)
    outcome = yield from store.commit(
        [
            store.Set(path=znodes.GENERATION, data=znodes.encode_generation(number), version=generation.version),
            store.Set(path=znodes.PRODUCER_ID_BLOCK, data=znodes.encode_producer_id_block(ids), version=block.version),
        ]
    )
    if not isinstance(outcome, store.Committed):
        raise StartupError(f"ZooKeeper did not take it: {outcome}; try again")
    return number


def _entry_text(entry: Seen) -> str:
    generation = f" of generation {entry.generation}" if entry.generation else ""
    if entry.position < 0:
        return f"no entry of a metadata log{generation}"
    at = datetime.fromtimestamp(entry.birth[1] / 1000, UTC)
    return f"metadata up to entry {entry.position}{generation}, of {at:%Y-%m-%d %H:%M:%S} UTC"
