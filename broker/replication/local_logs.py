"""The logs of this broker's replicas on its disk: opened, created and removed off the loop.

All of it is done by the thread for small files, one job after the other: a topic that is deleted and recreated has the same
directory names, and the old directory has to be out of the way before the new one is created. A directory records the id of its
topic, so one that belongs to another topic is never taken for ours.

A crash leaves a half-created directory (completed by the next start), or one renamed for removal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from broker.config.settings import LogConfig
from broker.coordination.local import Topic
from broker.errors import BrokerError, StorageError
from broker.helpers import Helpers
from broker.partitions.manager import PartitionManager
from broker.partitions.partition import Partition
from broker.storage.filesystem import FileSystem
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.replication")

_LOGS_PER_JOB = 50  # 10 ms if they are new; other small-file jobs queue behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A replica that this broker should have."""

    topic: Topic
    index: int
    config: LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The result for one place. `was_there`: its directory already existed, whatever is in it. Neither a partition nor an error:
    it is missing, and may not be created yet."""

    place: Place
    partition: Partition | None
    was_there: bool = False
    error: BaseException | None = None


class LocalLogs:
    """See the module docstring."""

    def __init__(self, partitions: PartitionManager, directory: LogDirectory, filesystem: FileSystem, helpers: Helpers) -> None:
        self._partitions = partitions
        self._directory = directory
        self._filesystem = filesystem
        self._helpers = helpers

    def found(self) -> list[tuple[str, int, bytes | None]]:
        """What is on disk: topic, partition and the topic's id, if the directory records it. Reads a small file for each: for
        the start only."""
        rows = []
        for name, index, _ in sorted(self._directory.partitions(), key=lambda row: row[:2]):
            topic_id = self._directory.topic_id(name, index)
            rows.append((name, index, None if topic_id is None else topic_id.bytes))
        return rows

    def forget_missing(self, places: Iterable[Place], found: Iterable[tuple[str, int]]) -> None:
        """A log created in place of a missing one must not inherit its recovery point: drop the checkpoint entries."""
        there = dict.fromkeys(found)
        missing = [key for place in places if (key := (place.topic.name, place.index)) not in there]
        self._forget(missing)

    def open(self, places: Sequence[Place], then: Callable[[Opened], None], *, may_make: bool) -> None:
        """Open each log, and create missing ones if `may_make`; `then` is called for each."""

        def opened(chunk: Sequence[Place], result: list[Opened] | None, error: BaseException | None) -> None:
            for one in result or [Opened(place=place, partition=None, error=error) for place in chunk]:
                then(one)

        for begin in range(0, len(places), _LOGS_PER_JOB):
            chunk = places[begin : begin + _LOGS_PER_JOB]
            self._helpers.store(partial(self._open_chunk, chunk, may_make=may_make), partial(opened, chunk))

    def remove(self, name: str, index: int) -> None:
        """Remove the directory of a log that is closed."""

        def removed(_: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("files of %s-%d could not be removed from the disk: %s", name, index, error)

        def renamed(removal: Callable[[], None] | None, error: BaseException | None) -> None:
            if error is not None:
                logger.error("%s-%d could not be removed, and is looked at again at the next start: %s", name, index, error)
            elif removal is not None:
                self._helpers.submit(removal, removed)

        self._forget([(name, index)])
        self._helpers.store(partial(self._discard, name, index), renamed)

    def set_aside(self, name: str, index: int) -> None:
        """Its topic is unknown: keep the directory under another name. For the start only."""
        self._directory.set_aside(name, index)
        self._forget([(name, index)])

    def _forget(self, keys: Iterable[tuple[str, int]]) -> None:
        job = self._directory.forget(keys)
        if job is not None:
            self._helpers.store(job, _forgotten)

    # Any thread

    def _open_chunk(self, places: Sequence[Place], *, may_make: bool) -> list[Opened]:
        """Directories first: if they cannot be synced, no log has been opened that the caller would not learn of."""
        found = [self._find(place, may_make=may_make) for place in places]
        if any(one.error is None and not one.was_there for one in found):
            self._directory.sync()
        return [self._open_found(one) if one.error is None and (one.was_there or may_make) else one for one in found]

    def _find(self, place: Place, *, may_make: bool) -> Opened:
        topic, index = place.topic, place.index
        try:
            was_there = self._filesystem.is_directory(self._directory.partition_path(topic.name, index))
            stored_id = self._directory.topic_id(topic.name, index) if was_there else None
            if stored_id not in (None, topic.topic_id):
                self._directory.set_aside(topic.name, index)
                was_there, stored_id = False, None
            if stored_id is None and (was_there or may_make):
                self._directory.make_partition(topic.name, index, topic.topic_id)
        except (BrokerError, OSError) as error:
            return Opened(place=place, partition=None, error=error)
        return Opened(place=place, partition=None, was_there=was_there)

    def _open_found(self, found: Opened) -> Opened:
        place = found.place
        try:
            path = self._directory.partition_path(place.topic.name, place.index)
            partition = self._partitions.build(place.topic, place.index, path, place.config)
        except (BrokerError, OSError) as error:
            return replace(found, error=error)
        return replace(found, partition=partition)

    def _discard(self, name: str, index: int) -> Callable[[], None] | None:
        if not self._filesystem.is_directory(self._directory.partition_path(name, index)):
            return None
        path = self._directory.discard_partition(name, index)
        self._directory.sync()
        return partial(self._filesystem.remove, path)


def _forgotten(_: object, error: BaseException | None) -> None:
    if isinstance(error, StorageError):
        logger.error("what is gone still stands in the checkpoints: %s", error)
