"""One partition that this broker follows: what its fetcher receives is stored here, byte for byte as the leader sent it.

The log follows its leader with one exception: what was visible is never truncated. All of it has been flushed on every in-sync
replica, so a leader that lacks it was either elected uncleanly, which the partition's state says (`is_recovering`), or is wrong:
then this replica goes offline with what it has, for an operator to look at.

A truncation or reset waits until the log is quiet and runs on a helper (storage/truncation.py). Nothing else is done with the log
meanwhile: its fetcher does not fetch, and `Roles` waits until `is_changing` is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from broker.errors import BrokerError, StorageError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.records.batch import LENGTH_END, NO_PRODUCER_ID
from broker.records.replicated import split_replicated
from broker.storage.truncation import TruncationTicket

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


class FollowedPartition:
    """Implements `replica.Replica`: see the module docstring."""

    def __init__(self, partition: Partition, *, helpers: Helpers, hooks: FollowerHooks) -> None:
        self.name = partition.name
        self.key = (partition.topic_id.bytes, partition.index)
        self.is_recovering = False  # the leader was elected uncleanly: what it lacks is lost
        self.is_changing = False
        self._partition = partition
        self._log = partition.log
        self._helpers = helpers
        self._hooks = hooks
        self._leader_visible = self._leader_start = NO_OFFSET

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
        """How many records are visible at the leader, as it last reported, and not stored here."""
        return max(0, self._leader_visible - self._log.end_offset)

    @property
    def is_offline(self) -> bool:
        return bool(self._log.offline_reason)

    # What the leader sends

    def append(self, records: memoryview) -> None:
        """Check and store them. ReplicationRefused: none of them is stored. StorageError."""
        log, producers = self._log, self._partition.producers
        log.require_online()
        start_offset = log.end_offset
        headers = split_replicated(records, start_offset, self.leader_epoch, self.last_epoch)
        try:
            log.append_replica(records, headers)
        except StorageError as error:
            if log.offline_reason:
                self._go_offline(f"what its leader sent cannot be written: {error}")
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
                self._go_offline(f"what was written could not be noted: {error!r}")
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
            self._refuse(f"its leader's log parts from it at offset {offset}, which", then)
        else:
            logger.info("%s: cut at offset %d, where its leader's log parts from it", self.name, offset)
            self._change(lambda: self._log.begin_truncation(offset), then)

    def reset(self, offset: int, then: Then) -> None:
        """Start over at the leader's log start offset: the leader has deleted everything that is here."""
        is_behind = offset > self.end_offset
        holds_visible = self._partition.visible_offset > self._log.log_start_offset
        if not is_behind and holds_visible and not self.is_recovering:
            self._refuse(f"its leader, whose log starts at offset {offset}, does not know it, and it", then)
        else:
            logger.info("%s: begins anew at offset %d, where its leader's log starts", self.name, offset)
            self._change(lambda: self._log.begin_reset(offset), then)

    def _refuse(self, what: str, then: Then) -> None:
        self._go_offline(f"{what} would lose records that were visible")
        then(StorageError(self._log.offline_reason))

    def _change(self, begin: Callable[[], TruncationTicket], then: Then) -> None:
        self.is_changing = True
        self._log.when_quiet(partial(self._begin, begin, then))

    def _begin(self, begin: Callable[[], TruncationTicket], then: Then) -> None:
        try:
            ticket = begin()
        except StorageError as error:
            self.is_changing = False
            then(error)
        else:
            self._helpers.submit(ticket.run, partial(self._ended, ticket, then))

    def _ended(self, ticket: TruncationTicket, then: Then, _: object, error: BaseException | None) -> None:
        log, told = self._log, None
        try:
            if error is None:
                log.finish_truncation(ticket)
            else:
                log.fail_truncation(ticket, error)
                told = error if isinstance(error, BrokerError) else StorageError(f"{self.name}: {error!r}")
        except Exception as caught:
            self._go_offline(f"a cut could not be finished: {caught!r}")
            told = StorageError(log.offline_reason)
        finally:
            self.is_changing = False
        if log.offline_reason:
            self._hooks.offline(self._partition)
        else:
            self._note_end()
            if told is None:
                self._hooks.cut(self._partition)
        then(told)

    def _note_end(self) -> None:
        """Keep the visible offset between the log start and end offsets, whichever of them has moved."""
        log, partition = self._log, self._partition
        partition.visible_offset = max(log.log_start_offset, min(partition.visible_offset, log.end_offset))

    def _go_offline(self, why: str) -> None:
        self._log.go_offline(f"{self.name}: {why}")
        logger.critical("%s is offline: %s", self.name, why)
        self._hooks.offline(self._partition)
