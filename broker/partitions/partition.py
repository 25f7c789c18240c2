"""One partition as its leader sees it: batches are staged while a turn of the loop reads requests, then written together.

Staging gives a batch its offset and stamps it; nobody sees a difference yet. `write_staged` is one write for all that the turn
brought; end offset, indexes and the memory of producers move only after it succeeded, and on failure the whole turn is as if it
never came. What nobody expected between the write and all of that, a defect or memory that ran out, takes this one partition
offline: its file may hold what its memory does not know.

Two offsets say how safe a record is (exposure.py moves them). Below `visible_offset` it is flushed by every replica of the
in-sync set: consumers may see it. Below `replicated_offset` every such replica has written it: acks=all may be answered.
Neither falls while this broker leads. On one broker they are what is flushed and what is written.

Whether it leads is a role that somebody else gives: PartitionManager, which also keeps those that it leads where the hot path
finds them. Nothing is staged on a partition that it does not lead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol
from uuid import UUID

from broker.coordination.local import INTERNAL_TOPICS
from broker.counters import Traffic
from broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from broker.partitions.producer_memory import ProducerMemory
from broker.partitions.producer_state import PRODUCERS_MAX, ProducerStates
from broker.records.batch import NO_PRODUCER_ID, BatchHeader, stamp
from broker.records.validation import NewBatch
from broker.storage.partition_log import PartitionLog
from broker.storage.segment import Segment

logger = logging.getLogger("broker.partitions")

NO_LEADER = -1
PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default of producer.id.expiration.ms


class Waiting(Protocol):
    """Somebody whose patience may end before that which it waits for."""

    is_over: bool


Wait = tuple[
    int, Callable[[BrokerError | None], None], Waiting | None
]  # for which offset, who is told, and whether it still waits


@dataclass(slots=True)
class Staged:
    """Where a batch will lie once the turn is written, or where it lies already. One per batch, so not frozen: that costs 0.6
    us."""

    base_offset: int
    duplicate: bool
    max_timestamp: int = field(default=-1, compare=False)


class Partition:
    """See the file's theory. Making one reads the log to remember its producers."""

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: PartitionLog,
        *,
        producers_max: int = PRODUCERS_MAX,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.name = f"{topic}-{index}"
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.is_internal = topic in INTERNAL_TOPICS
        self.log = log
        self.is_led = False  # by this broker
        self.leader = NO_LEADER  # where another broker leads: its id
        self.leader_epoch = log.epochs.current
        self.epoch_start_offset = log.end_offset  # where the epoch began in which this broker leads
        self.visible_offset = log.flushed_offset
        self.visible_place: tuple[Segment, int] | None = None  # where in the files it lies, if it is not where a flush ended
        self.replicated: int | None = None  # None: there are no other replicas to wait for
        self.lacks_replicas = False  # the in-sync set is smaller than min.insync.replicas: acks=all is refused
        self.awaits_visible: list[Wait] = []  # in the order of their offsets, as are those below
        self.awaits_replicated: list[Wait] = []
        self.producers = ProducerStates(producers_max=producers_max)
        self.producer_memory = ProducerMemory(self.producers, log, expiration_ms=producer_expiration_ms)
        self.traffic = Traffic()
        self.staged_views: list[memoryview] = []  # empty: nothing is staged
        self._staged_headers: list[BatchHeader] = []
        self._next_offset = log.end_offset
        if not log.offline_reason:
            self.producer_memory.restore()

    @property
    def replicated_offset(self) -> int:
        """All below it is written by every replica of the in-sync set."""
        return self.log.end_offset if self.replicated is None else self.replicated

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    # Roles

    def become_leader(self, epoch: int) -> None:
        """This broker leads from now on, in `epoch`, which nobody has led in before: its records begin at the end of the log."""
        assert epoch >= self.leader_epoch, "epochs never fall"
        self.log.disarm()
        if epoch != self.log.epochs.current:
            self.log.epochs.begin(epoch)
        self.is_led, self.leader, self.leader_epoch = True, NO_LEADER, epoch
        self.epoch_start_offset = self._next_offset = self.log.end_offset
        self.visible_place = None  # the log may have been cut since it was known

    def become_follower(self, leader: int, epoch: int) -> None:
        """Another broker leads, in `epoch`."""
        assert epoch >= self.leader_epoch, "epochs never fall"
        self.resign()
        self.leader, self.leader_epoch = leader, epoch

    def resign(self) -> None:
        """This broker does not lead, and nobody knows yet who does. What is staged will not be written."""
        self.log.disarm()
        self.discard_staged()
        self.is_led, self.leader = False, NO_LEADER
        self.replicated, self.lacks_replicas = None, False

    def require_led(self) -> None:
        """Raises NotLeaderOrFollower: for what goes on over several turns, in which the lead may have been lost."""
        if not self.is_led:
            raise NotLeaderOrFollower(f"this broker does not lead {self.name}")

    def learn_visible(self, offset: int) -> None:
        """As a follower: the leader's visible offset is `offset`. What is not on this disk is not vouched for by this broker."""
        self.visible_offset = max(self.visible_offset, min(offset, self.log.flushed_offset))

    # Writing

    def stage(self, batch: NewBatch) -> Staged:
        """Give the batch its offset and stamp it, where its producer may send it now. Its bytes must stay as they are until
        `write_staged`."""
        header = batch.header
        is_numbered = header.producer_id != NO_PRODUCER_ID  # looked at here: two calls for each batch of any other producer
        if is_numbered and (duplicate := self.producers.check(header)) is not None:
            return Staged(duplicate.base_offset, True, duplicate.max_timestamp)
        base_offset = self._next_offset
        stamp(batch.view, base_offset, self.leader_epoch)
        header = header.stamped(base_offset, self.leader_epoch)
        if is_numbered:
            self.producers.stage(header)
        self.staged_views.append(batch.view)
        self._staged_headers.append(header)
        self._next_offset = base_offset + header.last_offset_delta + 1
        return Staged(base_offset, False, header.max_timestamp)

    def write_staged(self) -> None:
        """Write all that is staged; StorageError: none of it is stored, and nothing is staged any more."""
        views, headers = self.staged_views, self._staged_headers
        if not views:
            return
        self.staged_views, self._staged_headers = [], []
        was_online = not self.log.offline_reason
        try:
            self.log.append(views, headers)
            self.producers.apply_staged()
        except Exception as error:
            self.producers.discard_staged()
            self._not_written(error, was_online=was_online)

    def _not_written(self, error: Exception, *, was_online: bool) -> NoReturn:
        if not isinstance(error, StorageError):  # the batches are written and their producers are not remembered
            self.log.go_offline(f"{self.name}: what was written could not be noted: {error!r}")
        self._next_offset = self.log.end_offset
        if was_online and self.log.offline_reason:
            reason = self.log.offline_reason
            is_disk = isinstance(error.__cause__, OSError)
            logger.critical(
                "%s is offline until the broker is restarted: %s%s",
                self.name,
                reason,
                "" if is_disk else "; this is a defect of the broker",
                exc_info=None if is_disk else error,
            )
            raise StorageError(reason) from error
        raise error

    # Writing in the fast lane

    def settle(self, batches: Sequence[tuple[int, int, int]], end_offset: int) -> None:
        """These batches, which end at `end_offset`, were written ahead, and their producers are staged: all of that counts from
        now on. Of each the size, the last offset and the largest timestamp. StorageError: the log is offline."""
        log = self.log
        try:
            log.segments.active.take_in(batches)
            self.producers.apply_staged()
            log.end_offset = self._next_offset = end_offset
        except Exception as error:
            self._not_written(error, was_online=True)

    def take_back(self, error: Exception) -> NoReturn:
        """A write ahead has failed, or must not count: nothing of it is stored. Raises StorageError."""
        try:
            self.log.take_back(error)
        except StorageError as refused:
            self._not_written(refused, was_online=True)

    def discard_staged(self) -> None:
        """Nothing of what is staged will be written."""
        self.staged_views, self._staged_headers = [], []
        self.producers.discard_staged()
        self._next_offset = self.log.end_offset

    def close(self) -> None:
        """Flush and close the log, and write down what its producers sent. StorageError: the stop is not clean."""
        if not self.log.offline_reason:
            self.producer_memory.save()
        self.log.close()
