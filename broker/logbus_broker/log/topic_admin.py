"""Creates, grows, deletes, moves and reconfigures topics: `TopicAdmin` is what clients can request, `TopicChanges` a single
broker's implementation; a cluster has another.

Every method is a background task, since all of it waits for the disk. What cannot be done for one topic is that topic's error;
the others of the same request are done. `timeout_ms` is how long the client waits: a single broker waits for its own disk only,
as long as that takes.

One request creates a thousand topics with one write of the registry, and their partitions with one flush of the data directory.
The order is always the same, and a crash anywhere leaves a state that the next start can finish:

    create    registry on disk  ->  directories and logs created  ->  data directory flushed  ->  public
    delete    registry on disk, with the ids marked deleted  ->  not public  ->  directories renamed, flushed  ->  files removed

What the disk refuses is rolled back: a topic of which one partition cannot be created does not exist afterwards, the others of
the same request do. The caller runs one of these at a time (`BackgroundTasks.enqueue`), so what was checked holds until it is
done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from logbus_broker import errors
from logbus_broker.cluster.dynamic_config import BrokerOverrides, Rewrite, Scope
from logbus_broker.cluster.topic_registry import NO_TOPIC_ID, Topic, TopicRegistry
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.manager import PartitionManager
from logbus_broker.log.partition import Partition

logger = logging.getLogger("broker.topics")

TIMEOUT_MS = 30_000  # if the request has none: half of Kafka's default.api.timeout.ms
DEFAULT = -1  # partitions: num.partitions; replicas: default.replication.factor

# Created or renamed by a thread in one go, some 50 ms: other small-file jobs queue behind it.
_PARTITIONS_PER_JOB = 200

Outcomes = Steps  # a generator that returns a list of Topic or BrokerError, in the order of the request
Failures = Steps  # a generator that returns BrokerErrors by topic name
Moves = Mapping[int, tuple[int, ...] | None]  # target brokers by partition; None: back to where it was
_PartitionKey = tuple[Topic, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments` say which brokers get each partition; then the two counts are ignored."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    overrides: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A topic to grow to `count` partitions; `assignments` say which brokers get each new one, in order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSettings:
    """A topic's new settings: `rewrite` of the current ones. It may be called more than once, and raises what is wrong."""

    topic: Topic
    rewrite: Rewrite


class TopicAdmin(Protocol):
    """See the module docstring."""

    def validate(self, topics: Iterable[NewTopic | errors.BrokerError]) -> Outcomes:
        """What `create` would return; nothing is created, and the topics have no id."""

    def create(self, topics: Iterable[NewTopic | errors.BrokerError], timeout_ms: int = TIMEOUT_MS) -> Outcomes:
        """Create topics with empty partitions. Errors in `topics` are passed through."""

    def check_growth(self, growth: Growth, *, planned: int = 0) -> int:
        """How many partitions the topic would get, with `planned` ones for other topics; raises what is wrong with it."""

    def grow(self, growths: Mapping[str, Growth], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Add empty partitions to topics that may have them (`check_growth`)."""

    def delete(self, topics: Sequence[Topic], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """The topics can no longer be found when it returns."""

    def reassign(self, topic: Topic, moves: Moves, timeout_ms: int = TIMEOUT_MS) -> Steps:
        """Begin to move partitions of the topic, to other brokers or back to where they were. Returns BrokerErrors by partition
        for those that cannot be moved."""

    def change_topics(self, changes: Sequence[NewSettings]) -> Failures:
        """Give topics other settings; they apply to open logs when it returns."""

    def change_broker(self, scope: Scope, rewrite: Rewrite) -> Steps:
        """Give this broker, or every broker, other settings below those of the topics. Raises what is wrong with them."""


def plan_each(topics: Iterable[NewTopic | errors.BrokerError], plan: Callable[[NewTopic], Any]) -> Steps:
    """The plan of each topic, or its error. Errors in `topics` are passed through."""
    outcomes: list[Any] = []
    for topic in topics:
        try:
            outcomes.append(topic if isinstance(topic, errors.BrokerError) else plan(topic))
        except errors.BrokerError as error:
            outcomes.append(error)
        yield None
    return outcomes


class TopicChanges:
    """Every method is a task, for the loop's thread; the jobs it yields run off the loop."""

    def __init__(
        self,
        partitions: PartitionManager,
        registry: TopicRegistry,
        directory: LogDirectory,
        filesystem: FileSystem,
        remove_files: Callable[[list[Path]], None],
        overrides: BrokerOverrides,
        *,
        broker_id: int,
    ) -> None:
        self._overrides = overrides
        self._me = [broker_id]
        self._partitions = partitions
        self._registry = registry
        self._directory = directory
        self._filesystem = filesystem
        self._remove_files = remove_files

    # Creating

    def validate(self, topics: Iterable[NewTopic | errors.BrokerError]) -> Outcomes:
        """What `create` would return."""
        return (yield from plan_each(topics, lambda new: replace(self._new(new), topic_id=NO_TOPIC_ID)))

    def create(self, topics: Iterable[NewTopic | errors.BrokerError], timeout_ms: int = TIMEOUT_MS) -> Outcomes:
        """Create topics with empty partitions; public, and on disk, when it returns."""
        planned: list[Topic] = []
        partition_count = 0

        def plan(new: NewTopic) -> Topic:
            # Planned topics count when later ones in the same request are checked: for colliding names, and for the limit on
            # partitions.
            nonlocal partition_count
            topic = self._new(new, partition_count)
            self._registry.plan(topic)
            planned.append(topic)
            partition_count += topic.partition_count
            return topic

        outcomes: list[Topic | errors.BrokerError] = yield from plan_each(topics, plan)
        if planned:
            partitions = [(topic, index) for topic in planned for index in range(topic.partition_count)]
            failed = yield from self._make(planned, partitions, self._registry.forget)
            for topic in planned:
                if topic.name not in failed:
                    logger.info("created topic %s with %d partitions", topic.name, topic.partition_count)
            outcomes = [failed.get(outcome.name, outcome) if isinstance(outcome, Topic) else outcome for outcome in outcomes]
        return outcomes

    def _new(self, new: NewTopic, planned: int = 0) -> Topic:
        count = new.partition_count
        if new.assignments is not None:
            count = self._assigned(new.assignments)
        elif new.replication_factor not in (DEFAULT, 1):
            raise errors.InvalidReplicationFactor(f"replication factor {new.replication_factor} with one broker: use 1 (or -1)")
        return self._partitions.new_topic(new.name, count, new.overrides, planned=planned)

    def _assigned(self, assignments: Mapping[int, Sequence[int]]) -> int:
        """How many partitions are assigned."""
        if sorted(assignments) != list(range(len(assignments))) or any(list(row) != self._me for row in assignments.values()):
            raise errors.InvalidReplicaAssignment(
                f"assignments must give every partition from 0 on to broker {self._me[0]} alone"
            )
        return len(assignments)

    def _make(self, topics: Sequence[Topic], partitions: Sequence[_PartitionKey], undo: Callable[[Topic], None]) -> Steps:
        """Create these new partitions of planned topics, and publish the topics. `undo` is called for each whose
        partitions could not be created; returns their errors by name."""
        try:
            # The registry is on disk before any directory is created (`_build`): a crash in between leaves a registered topic
            # without directories, which the next start creates. The other order would leave directories that no topic owns, and
            # the next topic of that name would find another topic's records.
            built, failed = yield from self._build(partitions)
        except errors.StorageError as error:
            built, failed = {}, dict.fromkeys((topic.name for topic in topics), error)
        for topic in topics:
            if topic.name in failed:
                undo(topic)
            else:
                for partition in built[topic.name]:
                    self._partitions.install(topic, partition)
                self._registry.publish(topic)
            yield None
        self._partitions.on_change()
        if failed:
            yield from self._take_back([(topic, index) for topic, index in partitions if topic.name in failed])
        return failed

    def check_growth(self, growth: Growth, *, planned: int = 0) -> int:
        """How many partitions the topic would get; raises what is wrong with it."""
        topic = self._registry.get(growth.name)
        self._partitions.check_growth(topic, growth.count, planned=planned)
        added = growth.count - topic.partition_count
        if growth.assignments is not None and [list(row) for row in growth.assignments] != [self._me] * added:
            raise errors.InvalidReplicaAssignment(
                f"assignments must give each of the {added} new partitions to broker {self._me[0]} alone"
            )
        return added

    def grow(self, growths: Mapping[str, Growth], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Add empty partitions to topics."""
        topics = {name: self._registry.get(name) for name in growths}
        grown = [replace(topic, partition_count=growths[name].count) for name, topic in topics.items()]
        for topic in grown:
            self._registry.plan(topic)
        partitions = [
            (topic, index) for topic in grown for index in range(topics[topic.name].partition_count, topic.partition_count)
        ]
        # One that cannot grow keeps its size.
        return (yield from self._make(grown, partitions, lambda topic: self._registry.plan(topics[topic.name])))

    def _take_back(self, partitions: Sequence[_PartitionKey]) -> Steps:
        """Roll back what was planned. If not even that can be written, it exists, empty, after a restart."""
        try:
            yield self._registry.write_job()
        except errors.StorageError as error:
            logger.error("topics whose creation failed may still be registered on disk: %s", error)
            return
        for chunk in _chunks(partitions):
            self._remove_files((yield partial(self._discard_existing, chunk)))

    def _discard_existing(self, partitions: Sequence[_PartitionKey]) -> list[Path]:
        """Any thread."""
        discarded = []
        for topic, index in partitions:
            if self._filesystem.is_directory(self._directory.partition_path(topic.name, index)):
                with suppress(errors.StorageError):  # it is empty, and the next topic of the name repartitions it
                    discarded.append(self._directory.discard_partition(topic.name, index))
        return discarded

    def _build(self, partitions: Sequence[_PartitionKey]) -> Steps:
        """Write the registry to disk, then create the partitions; returns them by topic, and the errors of
        topics of which one could not be created."""
        # Drop checkpoints of a former topic of this name: a recovery point beyond the new log's end would make recovery skip
        # what may be torn.
        stale = self._directory.checkpoints.forget((topic.name, index) for topic, index in partitions)
        if stale is not None:
            yield stale
        yield self._registry.write_job()
        built: dict[str, list[Partition]] = {topic.name: [] for topic, _ in partitions}
        failed: dict[str, errors.StorageError] = {}
        for chunk in _chunks(partitions):
            self._partitions.freeze()  # see `open_all`
            for name, outcome in (yield partial(self._build_chunk, chunk)):
                if isinstance(outcome, Partition):
                    built[name].append(outcome)
                else:
                    failed.setdefault(name, outcome)
            _abandon(built, failed)
            yield None
        try:
            yield self._directory.sync
        except errors.StorageError as error:
            failed = dict.fromkeys(built, error) | failed
            _abandon(built, failed)
        return built, failed

    def _build_chunk(self, partitions: Sequence[_PartitionKey]) -> list[tuple[str, Partition | errors.StorageError]]:
        """Any thread. What follows the first partition of a topic that cannot be built is not tried."""
        built: list[tuple[str, Partition | errors.StorageError]] = []
        for topic, index in partitions:
            if built and built[-1][0] == topic.name and isinstance(built[-1][1], errors.StorageError):
                continue
            try:
                built.append((topic.name, self._build_one(topic, index)))
            except OSError as error:
                built.append((topic.name, errors.StorageError(f"cannot create {topic.name}-{index}: {error}")))
            except errors.StorageError as error:
                built.append((topic.name, error))
        return built

    def _build_one(self, topic: Topic, index: int) -> Partition:
        path = self._directory.partition_path(topic.name, index)
        if self._filesystem.is_directory(path):
            if self._directory.topic_id(topic.name, index) in self._registry.deleted:  # and could not be renamed then
                self._filesystem.remove(self._directory.discard_partition(topic.name, index))
            else:
                self._directory.set_aside(topic.name, index)
        self._directory.make_partition(topic.name, index, topic.topic_id)
        partition = self._partitions.build(topic, index, path, self._partitions.settings.of_topic(topic.overrides))
        if partition.log.offline_reason:
            raise errors.StorageError(partition.log.offline_reason)
        return partition

    # Deleting

    def delete(self, topics: Sequence[Topic], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Remove topics; when it returns they can no longer be found, not even after a crash. If the disk refuses, all are as
        they were."""
        for topic in topics:
            self._registry.forget(topic)
        ids = {topic.topic_id for topic in topics}
        # The ids are written first: from then on a crash ends in "deleted", whatever is still in the directories. Only then is
        # the topic hidden from clients. What cannot be removed later is work for the next start, not an error for the client.
        self._registry.deleted |= ids
        try:
            yield self._registry.write_job()
        except errors.StorageError as error:
            self._registry.deleted -= ids
            for topic in topics:
                self._registry.plan(topic)
            return dict.fromkeys((topic.name for topic in topics), error)
        for topic in topics:
            self._registry.hide(topic)
            self._partitions.on_change()
            for index in range(topic.partition_count):
                # Yields to the loop after each partition: its waiting requests are answered at once, which costs time for each
                # of them.
                self._partitions.take_out(topic, index, errors.StorageError(f"{topic.name}-{index} was deleted"))
                yield None
            logger.info("deleted topic %s (%d partitions)", topic.name, topic.partition_count)
        try:
            for chunk in _chunks([(topic, index) for topic in topics for index in range(topic.partition_count)]):
                self._remove_files((yield partial(self._discard_chunk, chunk)))
            yield self._directory.sync
            self._registry.deleted -= ids
        except errors.StorageError as error:
            logger.error("deleted partitions will be removed from disk at the next start: %s", error)
        return {}

    def _discard_chunk(self, partitions: Sequence[_PartitionKey]) -> list[Path]:
        """Any thread."""
        return [self._directory.discard_partition(topic.name, index) for topic, index in partitions]

    # Moving

    def reassign(self, topic: Topic, moves: Moves, timeout_ms: int = TIMEOUT_MS) -> Steps:
        """A single broker has nowhere to move a partition to."""
        yield None
        return {index: error for index, target in moves.items() if (error := self._why_not_movable(topic, index, target))}

    def _why_not_movable(self, topic: Topic, index: int, target: tuple[int, ...] | None) -> errors.BrokerError | None:
        name = f"{topic.name}-{index}"
        if not 0 <= index < topic.partition_count:
            return errors.UnknownTopicOrPartition(f"no partition {name}")
        if target is None:
            return errors.NoReassignmentInProgress(f"{name} is not being reassigned")
        if list(target) != self._me:
            return errors.InvalidReplicaAssignment(f"{name} cannot be moved: broker {self._me[0]} is the only one")
        return None

    # Settings

    def change_topics(self, changes: Sequence[NewSettings]) -> Failures:
        """Give topics other settings; they apply to their open logs when it returns. If the disk refuses, none of them has
        changed."""
        before = [change.topic for change in changes]
        # Rewritten again although they were checked when the request was read: an earlier change may have been waiting in the
        # queue then.
        changed = [replace(change.topic, overrides=dict(change.rewrite(change.topic.overrides))) for change in changes]
        for topic in changed:
            self._registry.plan(topic)
        try:
            yield self._registry.write_job()
        except errors.StorageError as error:
            for topic in before:
                self._registry.plan(topic)
            return dict.fromkeys((topic.name for topic in before), error)
        for topic in changed:
            self._registry.publish(topic)
            self._partitions.reconfigure(topic)
            logger.info("topic %s now overrides %s", topic.name, topic.overrides or "nothing")
            yield None
        return {}

    def change_broker(self, scope: Scope, rewrite: Rewrite) -> Steps:
        """Give the broker, or every broker, other settings below those of the topics."""
        settings = self._partitions.settings
        values = rewrite(settings.of_scope(scope))
        settings.check(scope, values)
        yield self._overrides.write_job(scope, values)
        self._overrides.replace(scope, values)
        settings.refresh()
        for topic in list(self._registry):
            self._partitions.reconfigure(topic)
            yield None


def _abandon(built: Mapping[str, list[Partition]], failed: Iterable[str]) -> None:
    """What was created for topics that cannot be; `_take_back` removes the directories."""
    for name in failed:
        for partition in built[name]:
            partition.log.abandon(f"{partition.name} could not be created")
        built[name].clear()


def _chunks(partitions: Sequence[_PartitionKey]) -> Iterator[list[_PartitionKey]]:
    rest = iter(partitions)
    while chunk := list(islice(rest, _PARTITIONS_PER_JOB)):
        yield chunk
