"""Every partition this broker holds: opened at start, found by name or id, checkpointed. topic_admin.py adds and removes them.

Those that this broker leads are found by `get` and `get_by_id`, which the hot path uses: for any other partition they raise that
it is led elsewhere, or does not exist. A single broker leads everything it holds, in the epoch its log was opened with.

The registry says which topics exist; the log directory holds their bytes. If the two disagree after a crash, a registered topic
gets its missing (empty) partitions, remains of a topic that was being deleted are removed, and directories that no topic owns are
set aside and named in the log: nothing stored is removed without a request.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path

from logbus_broker import errors
from logbus_broker.clock import Clock
from logbus_broker.cluster.dynamic_config import Overrides, Scope
from logbus_broker.cluster.topic_registry import INTERNAL_TOPICS, OFFSETS_TOPIC, KnownTopics, Topic, TopicRegistry
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.producer_state import REFUSED_MAX, BeginTask
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol.batch import BatchHeader
from logbus_broker.security.state import AUDIT_TOPIC
from logbus_broker.settings import BrokerConfig, LogConfig
from logbus_broker.settings_catalog import ConfigSource, Layer

logger = logging.getLogger("broker.log")

_INTERNAL_SETTINGS_FIXED = ("cleanup.policy",)  # otherwise commits, or lines of the audit log, would be lost
_OPENED_TOGETHER = 200  # logs; then what they are made of is frozen
_REFUSED_SECONDS_MAX = 10.0  # a request in flight when another was refused has arrived by then


_FIXED = frozenset(item.metadata["name"] for item in fields(BrokerConfig) if item.metadata)


class LogSettings:
    """The settings of every log: the configuration file's, those changed at run time (`current` is both), and each topic's own on
    top."""

    def __init__(self, static: LogConfig, overrides: Overrides) -> None:
        self._static = static
        self._overrides = overrides
        try:
            self.current = static.with_broker_overrides(overrides.merged())
        except errors.InvalidConfig as error:
            raise errors.StartupError(f"broker-configs.json: {error}; remove the entry") from None

    def of_topic(self, overrides: Mapping[str, str]) -> LogConfig:
        """InvalidConfig names the setting that cannot be used."""
        return self.current.with_topic_overrides(overrides)

    def of_scope(self, scope: Scope) -> Mapping[str, str]:
        return self._overrides.of(scope)

    def layers(self) -> tuple[Layer, ...]:
        """The settings changed at run time, highest precedence first."""
        return (
            (ConfigSource.DYNAMIC_BROKER, self._overrides.of(Scope.THIS_BROKER)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._overrides.of(Scope.EVERY_BROKER)),
        )

    def check(self, scope: Scope, values: Mapping[str, str]) -> LogConfig:
        """The settings below the topics' own if `values` were the scope's."""
        fixed = sorted(values.keys() & _FIXED)
        if fixed:
            raise errors.InvalidConfig(
                f"{fixed[0]} cannot be changed while the broker runs: set it in its configuration file, then restart"
            )
        self._static.with_broker_overrides(values)  # even if the other scope overrides them here for now
        return self._static.with_broker_overrides(self._overrides.with_change(scope, values))

    def refresh(self) -> None:
        """The settings changed at run time have changed. InvalidConfig: the previous ones stay in use."""
        self.current = self._static.with_broker_overrides(self._overrides.merged())


class PartitionManager:
    """Topics and their partitions; all methods run on the loop's thread."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        registry: KnownTopics,
        settings: LogSettings,
        config: BrokerConfig,
        clock: Clock,
        filesystem: FileSystem,
        freeze: Callable[[], None],
        begin_task: BeginTask,
        leads_all: bool = True,
    ) -> None:
        """`leads_all`: there is no other broker. Otherwise `lead`, `follow` and `resign` assign the roles."""
        self._leads_all = leads_all
        self.registry = registry
        self.freeze = freeze
        self._begin_task = begin_task
        self.settings = settings
        self._directory = directory
        self._config = config
        self._clock = clock
        self._filesystem = filesystem
        self._partitions: dict[tuple[str, int], Partition] = {}
        # Those that this broker leads. Read by the hot path; changed only here.
        # Not a flag on the partition: if the hot path finds it here, one look-up has also established that it may use it, and
        # lost leadership cannot be overlooked.
        self.led_by_name: dict[tuple[str, int], Partition] = {}
        self.led_by_id: dict[tuple[bytes, int], Partition] = {}
        self._refused: deque[tuple[float, tuple[str, int], BatchHeader]] = deque(maxlen=REFUSED_MAX)
        # Compacted, since only the last commit of a group for a partition counts; with smaller segments than other topics, since
        # a coordinator that takes over reads all of them before it serves.
        self.internal_settings: Mapping[str, Mapping[str, str]] = {
            OFFSETS_TOPIC: {"cleanup.policy": "compact", "segment.bytes": str(config.offsets_segment_bytes)},
            AUDIT_TOPIC: {"cleanup.policy": "delete"},
        }
        self.on_change: Callable[[], None] = lambda: None
        self.on_rolled: Callable[[Partition], None] = lambda partition: None
        self.on_trimmed: Callable[[Partition], None] = lambda partition: None  # retention has moved its log start offset
        self.on_removed: Callable[[Partition, errors.BrokerError], None] = lambda partition, error: None
        self.on_lead_won: Callable[[Partition], None] = lambda partition: None
        self.on_lead_lost: Callable[[Partition, errors.BrokerError], None] = lambda partition, error: None

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def holds(self, partition: Partition) -> bool:
        """Whether this object is still current: its topic may have been deleted and recreated since the caller got it."""
        return self._partitions.get((partition.topic, partition.index)) is partition

    def get(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads; NotLeaderOrFollower, UnknownTopicOrPartition."""
        partition = self.led_by_name.get((topic, index))
        if partition is None:
            raise self._why_not(self.registry.get(topic), index)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Like `get`, by the 16 bytes of its topic's id, as Fetch version 13 and up gives it."""
        partition = self.led_by_id.get((topic_id, index))
        if partition is None:
            raise self._why_not(self.registry.get_by_id(uuid.UUID(bytes=topic_id)), index)
        return partition

    def _why_not(self, topic: Topic, index: int) -> errors.BrokerError:
        if self.has(topic.name, index):
            return errors.NotLeaderOrFollower(f"this broker does not lead {topic.name}-{index}")
        return errors.UnknownTopicOrPartition(f"no partition {topic.name}-{index}")

    def held(self, topic: str, index: int) -> Partition | None:
        """A partition that this broker has, whoever leads it."""
        return self._partitions.get((topic, index))

    def disk_space(self) -> tuple[int, int]:
        """Bytes of the disk that holds the logs: total and free."""
        return self._directory.space()

    def has(self, topic: str, index: int) -> bool:
        """Whether there is such a partition, on whichever broker."""
        return topic in self.registry and 0 <= index < self.registry.get(topic).partition_count

    def check_exists(self, topic: str, index: int) -> None:
        """Raises UnknownTopicOrPartition if no broker has it."""
        if not self.has(topic, index):
            raise errors.UnknownTopicOrPartition(f"no partition {topic}-{index}")

    # -- start and stop ----------------------------------------------------------------------------------------------------------

    def open_all(self, registry: TopicRegistry, thread_pool: ThreadPool) -> None:
        """Open and recover the log of every registered partition of a single broker.

        A partition is some forty objects that live as long as its topic. Python's garbage collector scans all objects again and
        again for cycles: 36 ms for three thousand partitions, during which every client waits, and there are no cycles among
        these (test_manager.py). So `freeze` exempts them from collection, here and where topics are created."""
        paths = {(name, index): path for name, index, path in self._directory.partitions()}
        self._set_strays_aside(paths, registry)
        topics, builds = [], []
        for topic in list(registry):
            # Per topic, not per partition: settings are merged from three layers, and thousands of partitions share them.
            config = self._stored_settings(topic)
            for index in range(topic.partition_count):
                # Registered, but without a directory: the process ended between the two steps of a creation (topic_admin.py).
                # The registry is what was promised.
                path = paths.get((topic.name, index)) or self._directory.make_partition(topic.name, index, topic.topic_id)
                topics.append(topic)
                builds.append(partial(self.build, topic, index, path, config))
        for first in range(0, len(builds), _OPENED_TOGETHER):
            chunk = slice(first, first + _OPENED_TOGETHER)
            for topic, partition in zip(topics[chunk], thread_pool.run_together(builds[chunk]), strict=True):
                self.install(topic, partition)
            self.freeze()
        self._directory.sync()

    def _stored_settings(self, topic: Topic) -> LogConfig:
        try:
            return self.settings.of_topic(topic.overrides)
        except errors.InvalidConfig as error:
            raise errors.StartupError(f"topics.json: {topic.name}: {error}; remove the entry") from None

    def _set_strays_aside(self, paths: dict[tuple[str, int], Path], registry: TopicRegistry) -> None:
        """Deal with directories that no topic owns, such as a copied one: it is not removed, but not used either. Remains of a
        topic that was being deleted at a crash are removed."""
        for name, index in sorted(paths):
            topic = registry.get(name) if name in registry else None
            topic_id = self._directory.topic_id(name, index)
            # Three kinds of directories have no partition: those of a deletion that a crash interrupted (removed: the client was
            # told it is deleted), copies and remains of former topics (set aside: an operator may need them), and those whose
            # metadata has the id of another topic of the same name (set aside: its records would appear in the new one).
            if topic_id in registry.deleted:
                del paths[name, index]
                self._filesystem.remove(self._directory.discard_partition(name, index))
            elif topic is None or index >= topic.partition_count or topic_id not in (None, topic.topic_id):
                del paths[name, index]
                self._directory.set_aside(name, index)
            elif topic_id is None:  # after a power failure, perhaps: completed like one that was being created
                del paths[name, index]

    def build(self, topic: Topic, index: int, path: Path, config: LogConfig) -> Partition:
        """Open a partition's log and restore its producers' states. Any thread: no other code has a reference to it yet."""
        log = PartitionLog.open(
            path,
            config=config,
            filesystem=self._filesystem,
            clock=self._clock,
            clean=self._directory.was_clean,
            recovery_point=self._directory.checkpoints.recovery_point(topic.name, index),
            log_start_offset=self._directory.checkpoints.log_start_offset(topic.name, index),
            is_replica=self._directory.is_in_cluster,
        )
        _log_recovery(f"{topic.name}-{index}", log)
        return Partition(
            topic.name,
            index,
            topic.topic_id,
            log,
            producers_max=self._config.producer_ids_max,
            producer_expiration_ms=self._config.producer_expiration_ms,
        )

    def install(self, topic: Topic, partition: Partition) -> None:
        """This broker holds the partition from now on; a single broker also serves it. In a cluster its log may have more than
        any consumer ever saw. The visible offset is that of the last checkpoint, unless the log has been truncated since; a
        higher one is learnt from the leader, or from the followers once this broker leads."""
        self._partitions[topic.name, partition.index] = partition
        partition.producer_snapshots.begin_task = self._begin_task
        log = partition.log
        if log.cut_marks:
            self._directory.checkpoints.note_cut(topic.name, partition.index, min(mark.offset for mark in log.cut_marks))
        if self._leads_all:
            self.lead(partition, log.epochs.current)
        else:
            # Less than what consumers saw before the stop is safe (they wait a moment), more is not: a record that the other
            # replicas never had would become visible and then be truncated.
            checkpointed = self._directory.checkpoints.visible_offset(topic.name, partition.index)
            partition.visible_offset = max(partition.log_start_offset, min(checkpointed, log.flushed_offset))
            self._apply_refused(partition)

    def refused(self, topic: str, index: int, header: BatchHeader) -> None:
        """A batch was refused that may be resent. In a cluster, clients may address a partition that this broker is to lead
        before it has opened its log: what was refused until then is remembered for it."""
        partition = self.held(topic, index)
        if partition is not None:
            partition.producers.refuse(header)
        elif not self._leads_all:
            self._refused.append((self._clock.monotonic(), (topic, index), header))

    def _apply_refused(self, partition: Partition) -> None:
        since = self._clock.monotonic() - _REFUSED_SECONDS_MAX
        for refused_at, key, header in self._refused:
            if key == (partition.topic, partition.index) and refused_at >= since:
                partition.producers.refuse(header)

    def take_out(self, topic: Topic, index: int, error: errors.BrokerError) -> None:
        """Remove the partition; `error` is what requests that wait for it get, and says whether it is deleted or moved away."""
        partition = self._partitions.pop((topic.name, index))
        self._hide(partition)
        partition.log.revoke_fast_path()
        partition.is_led = False
        self.on_removed(partition, error)
        # After the waiting requests were answered: abandoning releases the files, while responses being sent hold their own
        # references.
        partition.log.abandon(str(error))

    # -- roles -------------------------------------------------------------------------------------------------------------------

    def lead(self, partition: Partition, epoch: int) -> None:
        """This broker leads it in `epoch`, which is newer than any in which it led before."""
        partition.become_leader(epoch)
        self.led_by_name[partition.topic, partition.index] = partition
        self.led_by_id[partition.topic_id.bytes, partition.index] = partition
        self.on_lead_won(partition)

    def follow(self, partition: Partition, leader: int, epoch: int) -> None:
        """Broker `leader` leads it in `epoch`: requests waiting for it here are answered at once."""
        self._stop_leading(partition, partial(partition.become_follower, leader, epoch))

    def resign(self, partition: Partition) -> None:
        """This broker no longer leads it; the new leader need not be known."""
        self._stop_leading(partition, partition.resign)

    def _stop_leading(self, partition: Partition, change: Callable[[], None]) -> None:
        was_led = partition.is_led
        self._hide(partition)
        change()
        if was_led:
            self.on_lead_lost(partition, errors.NotLeaderOrFollower(f"this broker no longer leads {partition.name}"))

    def _hide(self, partition: Partition) -> None:
        self.led_by_name.pop((partition.topic, partition.index), None)
        self.led_by_id.pop((partition.topic_id.bytes, partition.index), None)

    def checkpoint_job(self) -> Callable[[], None]:
        """A job for any thread that records how far each log is known to be good, so that a recovery only reads what may be
        torn."""
        visible = {(p.topic, p.index): p.visible_offset for p in self}
        return self._directory.checkpoint_job({(p.topic, p.index): p.log for p in self}, visible)

    def close(self) -> bool:
        """Flush and close every log, write the checkpoints; True if the next start need not recover."""
        clean = True
        for partition in self:
            try:
                partition.close()
            except errors.StorageError as error:
                clean = False
                logger.error("%s: %s", partition.name, error)
        try:
            self.checkpoint_job()()
            self._directory.close(clean=clean)
        except errors.StorageError as error:
            clean = False
            logger.error("%s", error)
        return clean

    # -- topics ------------------------------------------------------------------------------------------------------------------

    def new_topic(self, name: str, partition_count: int, overrides: Mapping[str, str], *, planned: int = 0) -> Topic:
        """The topic that would be created, in addition to others with `planned` partitions; raises what is wrong with it."""
        if name in INTERNAL_TOPICS:  # has its own settings and no limit: otherwise groups could not commit offsets
            partition_count, overrides = 1, self.internal_settings[name]
        count = self._config.num_partitions if partition_count == -1 else partition_count
        topic = self.registry.new(name, count, overrides)
        if count < 1:
            raise errors.InvalidPartitions(f"a topic needs at least one partition, not {count}")
        if not topic.is_internal:
            self._check_room_for(count, planned)
        self.settings.of_topic(overrides)
        return topic

    def check_growth(self, topic: Topic, count: int, *, planned: int = 0) -> None:
        """Check that the topic may have `count` partitions: more than it has now, since records are never moved."""
        if count <= topic.partition_count:
            raise errors.InvalidPartitions(
                f"topic {topic.name!r} already has {topic.partition_count} partitions, not fewer than {count}"
            )
        self._check_room_for(count - topic.partition_count, planned)

    def _check_room_for(self, count: int, planned: int) -> None:
        existing, limit = len(self) + planned, self._config.partitions_max
        if existing + count > limit:
            raise errors.InvalidPartitions(
                f"{existing} partitions exist: {count} more would exceed logbus.partitions.max={limit}"
            )
        limit = self._filesystem.open_files.partitions_max
        if existing + count > limit:
            raise errors.StorageError(
                f"{existing} partitions exist: {count} more would exceed the {limit} that may stay open: raise `ulimit -n`"
            )

    def check_settings(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Check that the topic may have these settings instead of its own; raises InvalidConfig."""
        self.settings.of_topic(overrides)
        if topic.is_internal:
            own = self.internal_settings[topic.name]
            for name in _INTERNAL_SETTINGS_FIXED:
                if overrides.get(name) != own[name]:
                    raise errors.InvalidConfig(
                        f"{topic.name} is internal and must keep {name}={own[name]}, or what the broker keeps in it would be lost"
                    )

    def reconfigure(self, topic: Topic) -> None:
        """Apply the topic's current settings to its open logs."""
        config = self.settings.of_topic(topic.overrides)
        for index in range(topic.partition_count):
            self._partitions[topic.name, index].log.reconfigure(config)

    def expire_producers(self) -> None:
        """Forget producers that were silent for producer.id.expiration.ms."""
        now = self._clock.monotonic()
        for partition in self:
            partition.producer_snapshots.expire(now)


def _log_recovery(name: str, log: PartitionLog) -> None:
    recovery = log.recovery
    if log.offline_reason:
        logger.critical("%s is offline: %s", name, log.offline_reason)
    elif recovery.reason:
        logger.warning(
            "%s: recovery truncated %d bytes (%d whole segments), the log ends at offset %d: %s",
            name,
            recovery.truncated_bytes,
            recovery.removed_segments,
            log.end_offset,
            recovery.reason,
        )
