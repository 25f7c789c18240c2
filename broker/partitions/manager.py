"""Every partition this broker holds: opened at start, made and removed with their topics, checkpointed.

The registry says which topics exist; the log directory holds their bytes. Where the two disagree after a crash, a registered
topic gets its missing (empty) partitions, and directories that no topic owns are set aside and named in the log: nothing
stored is removed unasked.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from broker.clock import Clock
from broker.config import BrokerConfig
from broker.coordination.broker_overrides import Scope
from broker.coordination.local import Topic, TopicRegistry, check_topic_name
from broker.errors import (
    InvalidConfig,
    InvalidPartitions,
    StartupError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from broker.partitions.log_settings import LogSettings
from broker.partitions.partition import Partition
from broker.storage.filesystem import FileSystem
from broker.storage.log_directory import LogDirectory
from broker.storage.partition_log import PartitionLog

logger = logging.getLogger("broker.partitions")


class PartitionManager:
    """Topics and their partitions; all methods run on the loop's thread."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        registry: TopicRegistry,
        settings: LogSettings,
        config: BrokerConfig,
        clock: Clock,
        filesystem: FileSystem,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self._directory = directory
        self._config = config
        self._clock = clock
        self._filesystem = filesystem
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_topic_id: dict[tuple[bytes, int], Partition] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_rolled: Callable[[Partition], None] = lambda partition: None
        self.on_removed: Callable[[Partition], None] = lambda partition: None

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def holds(self, partition: Partition) -> bool:
        """Whether it is one of these still: its topic may have been deleted, and made again, since somebody took it."""
        return self._partitions.get((partition.topic, partition.index)) is partition

    def get(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is None:
            raise UnknownTopicOrPartition(f"no partition {topic}-{index}")
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        """By the 16 bytes of its topic's id, as a fetch of version 13 and up asks."""
        partition = self._by_topic_id.get((topic_id, index))
        if partition is None:
            topic = self.registry.get_by_id(uuid.UUID(bytes=topic_id))
            raise UnknownTopicOrPartition(f"no partition {topic.name}-{index}")
        return partition

    def disk_space(self) -> tuple[int, int]:
        """Bytes of the disk that holds the logs: all, and those that are left."""
        return self._directory.space()

    def has(self, topic: str, index: int) -> bool:
        return (topic, index) in self._partitions

    # -- start and stop ----------------------------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Open and recover the log of every registered partition."""
        found = {(name, index): path for name, index, path in self._directory.partitions()}
        self._set_strays_aside(found)
        for topic in self.registry:
            self._check_stored_settings(topic)
            for index in range(topic.partition_count):
                path = found.pop((topic.name, index), None)
                self._open(topic, index, path or self._directory.create_partition(topic.name, index, topic.topic_id))

    def _check_stored_settings(self, topic: Topic) -> None:
        try:
            self.settings.of_topic(topic.overrides)
        except InvalidConfig as error:
            raise StartupError(f"topics.json: {topic.name}: {error}; take the entry out") from None

    def _set_strays_aside(self, found: dict[tuple[str, int], Path]) -> None:
        """A crash while a topic was being deleted, or a copied directory: not removed, but no topic's either."""
        for name, index in sorted(found):
            topic = self.registry.get(name) if name in self.registry else None
            if (
                topic is None
                or index >= topic.partition_count
                or self._directory.topic_id(name, index) not in (None, topic.topic_id)
            ):
                del found[name, index]
                path = self._directory.set_aside(name, index)
                logger.warning(
                    "%s-%d belongs to no topic that exists: set aside as %s; remove it if you do not miss it", name, index, path
                )

    def _open(self, topic: Topic, index: int, path: Path) -> Partition:
        log = PartitionLog.open(
            path,
            config=self.settings.of_topic(topic.overrides),
            filesystem=self._filesystem,
            clock=self._clock,
            clean=self._directory.was_clean,
            recovery_point=self._directory.recovery_point(topic.name, index),
            log_start_offset=self._directory.log_start_offset(topic.name, index),
            may_have_gaps=self._directory.cleaned_offset(topic.name, index) > 0,
        )
        partition = Partition(
            topic.name,
            index,
            topic.topic_id,
            log,
            producers_max=self._config.producer_ids_max,
            producer_expiration_ms=self._config.producer_expiration_ms,
        )
        self._partitions[topic.name, index] = partition
        self._by_topic_id[topic.topic_id.bytes, index] = partition
        return partition

    def checkpoint(self) -> None:
        """Write down how far each log is known to be good, so that a recovery reads only what may be torn."""
        self._directory.write_checkpoints({(p.topic, p.index): p.log for p in self})

    def close(self) -> bool:
        """Flush and close every log, write the checkpoints; True where the next start need not recover."""
        clean = True
        logs = {(p.topic, p.index): p.log for p in self}
        for partition in self:
            try:
                partition.close()
            except StorageError as error:
                clean = False
                logger.error("%s: %s", partition.name, error)
        self._directory.write_checkpoints(logs)
        self._directory.close(clean=clean)
        return clean

    # -- topics ------------------------------------------------------------------------------------------------------------------

    def check_new(self, name: str | None, partition_count: int, overrides: Mapping[str, str]) -> tuple[str, int]:
        """The name and partition count that a new topic would get; raises what is wrong with them."""
        name = check_topic_name(name, self.registry.names())
        if name in self.registry:
            raise TopicAlreadyExists(f"topic {name!r} exists")
        count = self._config.num_partitions if partition_count == -1 else partition_count
        if count < 1:
            raise InvalidPartitions(f"a topic needs at least one partition, not {count}")
        self._check_room_for(count)
        self.settings.of_topic(overrides)
        return name, count

    def _check_room_for(self, count: int) -> None:
        if len(self) + count > self._config.partitions_max:
            raise InvalidPartitions(
                f"{len(self)} partitions exist, {count} more would pass logbus.partitions.max={self._config.partitions_max}"
            )

    def create(self, name: str | None, partition_count: int = -1, overrides: Mapping[str, str] | None = None) -> Topic:
        """Make a topic with empty partitions; on disk when it returns."""
        overrides = overrides or {}
        name, count = self.check_new(name, partition_count, overrides)
        topic = self.registry.add(name, count, overrides)
        try:
            self._make(topic, range(count))
        except StorageError:
            self.registry.remove(topic)
            raise
        return topic

    def _make(self, topic: Topic, indexes: range) -> None:
        """All of them or, where the disk refuses one, none."""
        try:
            for index in indexes:
                self._open(topic, index, self._directory.create_partition(topic.name, index, topic.topic_id))
        except StorageError:
            for index in indexes:
                self._forget(topic, index)
            raise
        finally:
            self.on_change()

    def _forget(self, topic: Topic, index: int) -> None:
        partition = self._partitions.pop((topic.name, index), None)
        self._by_topic_id.pop((topic.topic_id.bytes, index), None)
        if partition is not None:
            partition.log.abandon(f"{partition.name} could not be made")

    def check_growth(self, topic: Topic, count: int) -> None:
        """Whether the topic may be given `count` partitions: more than it has, since records are never moved."""
        if count <= topic.partition_count:
            raise InvalidPartitions(f"topic {topic.name!r} has {topic.partition_count} partitions: {count} are not more")
        self._check_room_for(count - topic.partition_count)

    def grow(self, topic: Topic, count: int) -> None:
        """Add empty partitions until there are `count`; on disk when it returns."""
        self.check_growth(topic, count)
        grown = self.registry.change(topic, partition_count=count)
        try:
            self._make(grown, range(topic.partition_count, count))
        except StorageError:
            self.registry.change(grown, partition_count=topic.partition_count)
            raise

    def change_topic(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Give a topic these settings instead of those it has; they hold for its open logs at once."""
        self.settings.of_topic(overrides)
        self._reconfigure(self.registry.change(topic, overrides=overrides))

    def change_broker(self, scope: Scope, values: Mapping[str, str]) -> None:
        """Give the broker, or every broker, these settings below those of the topics; they hold at once."""
        self.settings.replace(scope, values)
        for topic in self.registry:
            self._reconfigure(topic)

    def _reconfigure(self, topic: Topic) -> None:
        config = self.settings.of_topic(topic.overrides)
        for index in range(topic.partition_count):
            self._partitions[topic.name, index].log.config = config

    def delete(self, topic: Topic) -> list[Path]:
        """Remove a topic; the returned directories are already out of the way and may be unlinked by a helper."""
        self.registry.remove(topic)
        doomed: list[Path] = []
        for index in range(topic.partition_count):
            partition = self._partitions.pop((topic.name, index))
            del self._by_topic_id[topic.topic_id.bytes, index]
            self.on_removed(partition)
            partition.log.abandon(f"{partition.name} was deleted")
            doomed.append(self._directory.delete_partition(topic.name, index))
        self.on_change()
        return doomed

    def topic_of(self, name: str | None, topic_id: uuid.UUID | None) -> Topic:
        """A topic by whichever of the two the request gives."""
        return self.registry.get(name) if name is not None else self.registry.get_by_id(topic_id or uuid.UUID(int=0))

    def expire_producers(self) -> None:
        """Forget producers that were silent for producer.id.expiration.ms."""
        now = self._clock.monotonic()
        for partition in self:
            partition.producer_memory.expire(now)
