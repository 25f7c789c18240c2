"""The replicas of this broker: a partition that it follows (`FollowedPartition`), the logs on its disk (`ReplicaLogs`), and what
a starting broker has to report about them (`state_at_start`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from logbus_broker.cluster import metadata_image, topic_registry
from logbus_broker.cluster.store import in_batches
from logbus_broker.errors import BrokerError, StorageError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log import leader_epochs, log_directory, manager
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol.batch import LENGTH_END, NO_PRODUCER_ID
from logbus_broker.protocol.validation import split_replicated
from logbus_broker.settings import LogConfig

logger = logging.getLogger("broker.replication")

NO_OFFSET = -1
Then = Callable[[BrokerError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerHooks:
    """What happens after records are stored."""

    written: Callable[[Partition, int], None]  # with the number of bytes, which must be flushed in time
    want_flush: Callable[[Partition], None]
    offline: Callable[[Partition], None]
    cut: Callable[[Partition], None] = lambda partition: None
    refused: Callable[[Partition, StorageError], None] = lambda partition, error: None  # the log is as it was


class FollowedPartition:
    """Implements `interfaces.Replica`: what the fetcher receives is stored, byte for byte as the leader sent it.

    The log follows its leader with one exception: what was visible is never truncated. All of it has been flushed on every
    in-sync replica, so a leader that lacks it was either elected uncleanly, which the partition's state says (`is_recovering`),
    or is wrong: then this replica goes offline with what it has, for an operator to look at.

    A truncation or reset waits until the log is quiet and runs on a thread (log/leader_epochs.py). Nothing else is done with
    the log meanwhile: its fetcher does not fetch, and `ReplicaManager` waits until `is_changing` is false."""

    def __init__(self, partition: Partition, *, thread_pool: ThreadPool, hooks: FollowerHooks) -> None:
        self.name = partition.name
        self.key = (partition.topic_id.bytes, partition.index)
        self.is_recovering = False  # the leader was elected uncleanly: what it lacks is lost
        self.is_in_sync = False  # as far as this broker has seen
        self.is_changing = False
        self._partition = partition
        self._log = partition.log
        self._thread_pool = thread_pool
        self._hooks = hooks
        self._leader_visible = self._leader_start = NO_OFFSET
        self._received = NO_OFFSET  # the end of the newest records that the leader has sent

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def last_epoch(self) -> int:
        return self._log.epochs.written.latest

    @property
    def lag(self) -> int:
        """How many records are visible at the leader, as it last reported, or were received from it, and are not stored here."""
        return max(0, max(self._leader_visible, self._received) - self._log.end_offset)

    @property
    def is_offline(self) -> bool:
        return bool(self._log.offline_reason)

    @property
    def is_impaired(self) -> bool:
        return bool(self._partition.impaired_reason)

    # What the leader sends

    def append(self, records: memoryview) -> None:
        """Check and store them. ReplicationRefused: none of them is stored. StorageError."""
        log, producers = self._log, self._partition.producers
        log.require_online()
        start_offset = log.end_offset
        headers = split_replicated(records, start_offset, self.leader_epoch, self.last_epoch)
        self._received = headers[-1].next_offset
        try:
            log.append_replica(records, headers)
        except StorageError as error:
            if log.offline_reason:
                self._go_offline(f"could not write the leader's records: {error}")
            else:
                self._hooks.refused(self._partition, error)
            raise
        finally:  # it may fail after a first part of them has been stored
            stored = headers
            if headers[-1].next_offset != log.end_offset:
                stored = [header for header in headers if header.next_offset <= log.end_offset]
            try:
                for header in stored:
                    if header.producer_id != NO_PRODUCER_ID:
                        producers.apply(header)
            except Exception as error:
                self._go_offline(f"could not update the producer states after a write: {error!r}")
                raise StorageError(log.offline_reason) from error
            if stored:
                self._hooks.written(self._partition, sum([header.length for header in stored]) + LENGTH_END * len(stored))

    def learn(self, visible_offset: int, log_start_offset: int) -> None:
        """Only what is on this disk becomes visible, and what the leader has deleted is deleted here as far as it was visible."""
        self._leader_visible, self._leader_start = visible_offset, log_start_offset
        self._partition.learn_visible(visible_offset)
        start_offset = min(log_start_offset, self._partition.visible_offset)
        if start_offset > self._log.log_start_offset:
            self._log.delete_before(start_offset)

    def flushed(self) -> None:
        """More of the log is on disk."""
        if self._leader_visible == NO_OFFSET:
            return
        if self.is_changing:  # a truncation that waited for this flush may have begun
            self._partition.learn_visible(self._leader_visible)
        else:
            self.learn(self._leader_visible, self._leader_start)

    def want_flush(self, offset: int) -> None:
        if offset > self._log.flushed_offset:
            self._hooks.want_flush(self._partition)

    # Truncating

    def cut(self, epoch: int, end_offset: int, then: Then) -> None:
        """Truncate to what the leader has: there `epoch` ends at `end_offset`. If the epoch is not known here, everything newer
        is truncated, and the next answer may truncate more (KIP-279)."""
        _, own_end = self._log.end_of_epoch(epoch)
        offset = end_offset if own_end < 0 else min(own_end, end_offset)
        if offset < self._partition.visible_offset and not self.is_recovering:
            self._refuse(f"truncating to offset {offset} to match the leader", then)
        else:
            logger.info("%s: truncating to offset %d, where the leader's log diverges", self.name, offset)
            self._change(lambda: self._log.begin_truncation(offset), then)

    def reset(self, offset: int, then: Then) -> None:
        """Start over at the leader's log start offset: the leader has deleted everything that is here."""
        is_behind = offset > self.end_offset
        holds_visible = self._partition.visible_offset > self._log.log_start_offset
        if not is_behind and holds_visible and not self.is_recovering:
            self._refuse(f"starting over at offset {offset}, where the leader's log starts,", then)
        else:
            logger.info("%s: starting over at offset %d, where the leader's log starts", self.name, offset)
            self._change(lambda: self._log.begin_truncation(offset, resets=True), then)

    def _refuse(self, what: str, then: Then) -> None:
        self._go_offline(f"{what} would lose records that were visible")
        then(StorageError(self._log.offline_reason))

    def _change(self, begin: Callable[[], leader_epochs.TruncationTicket], then: Then) -> None:
        self.is_changing = True
        self._log.when_quiet(partial(self._begin, begin, then))

    def _begin(self, begin: Callable[[], leader_epochs.TruncationTicket], then: Then) -> None:
        try:
            ticket = begin()
        except StorageError as error:
            self.is_changing = False
            if not self._log.offline_reason:
                self._hooks.refused(self._partition, error)
            then(error)
        else:
            self._thread_pool.submit(ticket.run, partial(self._ended, ticket, then))

    def _ended(self, ticket: leader_epochs.TruncationTicket, then: Then, _: object, error: BaseException | None) -> None:
        log, failure = self._log, None
        try:
            if error is None:
                log.finish_truncation(ticket)
            else:
                log.fail_truncation(ticket, error)
                failure = error if isinstance(error, BrokerError) else StorageError(f"{self.name}: {error!r}")
        except Exception as caught:
            self._go_offline(f"could not finish a truncation: {caught!r}")
            failure = StorageError(log.offline_reason)
        finally:
            self.is_changing = False
        if log.offline_reason:
            self._hooks.offline(self._partition)
        else:
            # Keep the visible offset between the log start and end offsets, whichever of them has moved.
            self._partition.visible_offset = max(log.log_start_offset, min(self._partition.visible_offset, log.end_offset))
            if failure is None:
                self._hooks.cut(self._partition)
        then(failure)

    def _go_offline(self, why: str) -> None:
        self._log.go_offline(f"{self.name}: {why}")
        logger.critical("%s is offline: %s", self.name, why)
        self._hooks.offline(self._partition)


_LOGS_PER_JOB = 50  # 10 ms if they are new; other small-file jobs queue behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedReplica:
    """A replica that this broker should have."""

    topic: topic_registry.Topic
    index: int
    config: LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedReplica:
    """The outcome for one replica. `was_on_disk`: its directory already existed, whatever is in it. Neither a partition nor an
    error: it is missing, and may not be created yet."""

    replica: AssignedReplica
    partition: Partition | None
    was_on_disk: bool = False
    error: BaseException | None = None


class ReplicaLogs:
    """The logs of this broker's replicas on its disk: opened, created and removed off the loop.

    All of it is done by the thread for small files, one job after the other: a topic that is deleted and recreated has the same
    directory names, and the old directory has to be out of the way before the new one is created. Only the logs of one job are
    opened together. A directory records the id of its topic, so one that belongs to another topic is never taken for ours.

    A crash leaves a half-created directory (completed by the next start), or one renamed for removal."""

    def __init__(
        self,
        partitions: manager.PartitionManager,
        directory: log_directory.LogDirectory,
        filesystem: FileSystem,
        thread_pool: ThreadPool,
    ) -> None:
        self._partitions = partitions
        self._directory = directory
        self._filesystem = filesystem
        self._thread_pool = thread_pool

    def found(self) -> list[tuple[str, int, bytes | None]]:
        """What is on disk: topic, partition and the topic's id, if the directory records it. Reads a small file for each: for
        the start only."""
        rows = []
        for name, index, _ in sorted(self._directory.partitions(), key=lambda row: row[:2]):
            topic_id = self._directory.topic_id(name, index)
            rows.append((name, index, None if topic_id is None else topic_id.bytes))
        return rows

    def forget_missing(self, assigned: Iterable[AssignedReplica], on_disk: Iterable[tuple[str, int]]) -> None:
        """A log created in place of a missing one must not inherit its recovery point: drop the checkpoint entries."""
        existing = dict.fromkeys(on_disk)
        missing = [key for replica in assigned if (key := (replica.topic.name, replica.index)) not in existing]
        self._forget(missing)

    def open(self, assigned: Sequence[AssignedReplica], then: Callable[[OpenedReplica], None], *, may_make: bool) -> None:
        """Open each log, and create missing ones if `may_make`; `then` is called for each."""

        def opened(chunk: Sequence[AssignedReplica], result: list[OpenedReplica] | None, error: BaseException | None) -> None:
            for opened_replica in result or [OpenedReplica(replica=replica, partition=None, error=error) for replica in chunk]:
                then(opened_replica)

        for chunk in in_batches(assigned, _LOGS_PER_JOB):
            self._thread_pool.store(partial(self._open_chunk, chunk, may_make=may_make), partial(opened, chunk))

    def remove(self, name: str, index: int) -> None:
        """Remove the directory of a log that is closed."""

        def removed(_: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("could not remove files of %s-%d: %s", name, index, error)

        def renamed(removal: Callable[[], None] | None, error: BaseException | None) -> None:
            if error is not None:
                logger.error("could not remove %s-%d, the next start tries again: %s", name, index, error)
            elif removal is not None:
                self._thread_pool.submit(removal, removed)

        self._forget([(name, index)])
        self._thread_pool.store(partial(self._discard, name, index), renamed)

    def set_aside(self, name: str, index: int) -> None:
        """Its topic is unknown: keep the directory under another name. For the start only."""
        self._directory.set_aside(name, index)
        self._forget([(name, index)])

    def set_damaged_aside(self, name: str, index: int) -> None:
        """Keep the directory of a log that is closed under another name; the next log of its name is a new one."""

        def moved(_: object, error: BaseException | None) -> None:
            if error is not None:  # it is opened again, and recovery cuts off what is damaged
                logger.error("could not set %s-%d aside: %s", name, index, error)

        self._forget([(name, index)])
        self._thread_pool.store(partial(self._directory.set_aside, name, index, "is damaged"), moved)

    def _forget(self, keys: Iterable[tuple[str, int]]) -> None:
        job = self._directory.checkpoints.forget(keys)
        if job is not None:
            self._thread_pool.store(job, _forgotten)

    # Any thread

    def _open_chunk(self, assigned: Sequence[AssignedReplica], *, may_make: bool) -> list[OpenedReplica]:
        """Directories first: if they cannot be synced, no log has been opened that the caller would not learn of."""
        if may_make:
            self._directory.note_seen()
        results = [self._find(replica, may_make=may_make) for replica in assigned]
        if any(result.error is None and not result.was_on_disk for result in results):
            self._directory.sync()
        return self._thread_pool.run_together([partial(self._open_found, result, may_make=may_make) for result in results])

    def _find(self, replica: AssignedReplica, *, may_make: bool) -> OpenedReplica:
        topic, index = replica.topic, replica.index
        try:
            was_on_disk = self._filesystem.is_directory(self._directory.partition_path(topic.name, index))
            stored_id = self._directory.topic_id(topic.name, index) if was_on_disk else None
            if stored_id not in (None, topic.topic_id):
                self._directory.set_aside(topic.name, index)
                was_on_disk, stored_id = False, None
            if stored_id is None and (was_on_disk or may_make):
                self._directory.make_partition(topic.name, index, topic.topic_id)
        except (BrokerError, OSError) as error:
            return OpenedReplica(replica=replica, partition=None, error=error)
        return OpenedReplica(replica=replica, partition=None, was_on_disk=was_on_disk)

    def _open_found(self, result: OpenedReplica, *, may_make: bool) -> OpenedReplica:
        if result.error is not None or not (result.was_on_disk or may_make):
            return result
        replica = result.replica
        try:
            path = self._directory.partition_path(replica.topic.name, replica.index)
            partition = self._partitions.build(replica.topic, replica.index, path, replica.config)
        except (BrokerError, OSError) as error:
            return replace(result, error=error)
        return replace(result, partition=partition)

    def _discard(self, name: str, index: int) -> Callable[[], None] | None:
        if not self._filesystem.is_directory(self._directory.partition_path(name, index)):
            return None
        path = self._directory.discard_partition(name, index)
        self._directory.sync()
        return partial(self._filesystem.remove, path)


def _forgotten(_: object, error: BaseException | None) -> None:
    if isinstance(error, StorageError):
        logger.error("checkpoints still list deleted logs: %s", error)


class LogIntegrity(Enum):
    """What is left of a log."""

    WHOLE = "nothing is missing"
    PERHAPS_LESS = "its end may be missing"
    GONE = "there is none"


def state_at_start(
    me: int,
    state: metadata_image.PartitionState,
    kept: LogIntegrity,
    minimum: int,
    end: metadata_image.LogEnd | None = None,
) -> metadata_image.PartitionState:
    """The state that the partition should have before this broker registers again, with the version of its current state, if
    ZooKeeper lists the broker as in sync or eligible. `minimum` is its min.insync.replicas, `end` how far this broker's log goes,
    None if there is none. Pure.

    A process never leads in an epoch that an earlier one led in: two records could have the same epoch and offset if something
    written had been lost in between. And it stays in sync only if it can vouch for its log: that nothing is missing which the
    earlier process had reported to other brokers. After a kill that is certain, since the kernel still had it all; after a power
    failure only for partitions where every acknowledgement waited for the flush.

    A broker that cannot vouch leaves the set, and leaves behind how far its log goes. If it was the last one, the eligible
    replicas take its place, which have everything that was acknowledged. Where there are none, nobody can vouch, and the longest
    log is the whole one if any is: that broker becomes the set. If even the last one's log is gone, no broker may lead until an
    operator decides."""
    others = tuple(broker for broker in state.isr if broker != me)
    withdrawn = tuple(other for other in state.withdrawn if other.broker != me)
    if kept is LogIntegrity.WHOLE:
        if me not in state.isr:
            return state
        back = replace(state, is_lost=False)
        return replace(back, leader_epoch=state.leader_epoch + 1, handover_to=None) if state.leader == me else back
    eligible = tuple(broker for broker in state.eligible if broker != me)
    if me not in state.isr:
        is_known = eligible != state.eligible or withdrawn != state.withdrawn
        return replace(state, eligible=eligible, withdrawn=(*withdrawn, end) if end and is_known else withdrawn)
    left = replace(state, withdrawn=(*withdrawn, end) if end else withdrawn)
    if others:
        still_eligible = tuple(broker for broker in metadata_image.eligible_after(state, others, minimum) if broker != me)
        successor = None if me in (state.leader, state.handover_to) else state.handover_to
        left = replace(left, isr=others, eligible=still_eligible, handover_to=successor)
        return _without_leader(left) if state.leader == me else left
    if eligible:
        return _without_leader(replace(left, isr=eligible, eligible=()))
    if end is None:
        return _without_leader(replace(left, is_lost=True))
    longest = max((end, *withdrawn), key=lambda log_end: log_end.reach)  # the first of equals: ours
    if longest.broker != me:
        remaining = tuple(log_end for log_end in left.withdrawn if log_end is not longest)
        return _without_leader(replace(left, isr=(longest.broker,), is_lost=False, withdrawn=remaining))
    back = replace(state, is_lost=False, withdrawn=withdrawn)
    return replace(back, leader_epoch=state.leader_epoch + 1, handover_to=None) if state.leader == me else back


def _without_leader(state: metadata_image.PartitionState) -> metadata_image.PartitionState:
    """In a new epoch, unless there was none before."""
    if state.leader == metadata_image.NO_LEADER:
        return state
    return replace(state, leader=metadata_image.NO_LEADER, leader_epoch=state.leader_epoch + 1, handover_to=None)
