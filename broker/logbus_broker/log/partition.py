"""One partition as its leader sees it: batches are staged while a turn of the loop reads requests, then written together; and
what the produce fast path relies on for it.

Staging assigns a batch its offset and stamps it; nothing is visible yet. `write_staged` is one write for everything the turn
brought; the end offset, indexes and producer states move only after it has succeeded, and on failure it is as if the turn's
batches had never arrived. An unexpected failure between the write and those updates, a defect or out of memory, takes this one
partition offline: its file may hold more than its state in memory shows.

Two offsets say how safe a record is (high_watermark.py moves them). Below `visible_offset` it has been flushed by every in-sync
replica: consumers may see it. Below `replicated_offset` every in-sync replica has written it: acks=all may be answered.
Neither falls while this broker leads. On a single broker they are the flushed offset and the log end offset.

The leader role is assigned by PartitionManager, which also keeps the partitions this broker leads where the hot path finds them.
Nothing is staged on a partition that this broker does not lead.

While a partition has a state for the fast path, this broker leads it, in `epoch`, and there are no other replicas; its log is
online and is not being truncated; `segment` is the active segment; the settings are those below. Whatever changes one of these
cancels the state first (`PartitionLog.revoke_fast_path`, the only place): it is then no longer in `states`, where the fast path
looks for it, and no longer refers to them either. Everything that each batch changes is read from the log, the segment and the
index themselves: there is no second copy of the log end offset.

The fast path gathers batches (`add`), writes them (the segment's `write_ahead`), and then either they take effect (`reset` after
`ProduceTurn.settle`) or their stamps are removed (`undo`). Between two turns nothing is gathered.

Hot path, once per batch: `add`. Whether a batch still fits into the segment is asked where it is read (produce_fast_path.py): a
method here in between costs 50 ns a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NoReturn, Protocol
from uuid import UUID

from logbus_broker.cluster.metadata_image import NO_LEADER
from logbus_broker.cluster.topic_registry import INTERNAL_TOPICS
from logbus_broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from logbus_broker.health import Traffic
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.producer_state import PRODUCERS_MAX, ProducerSnapshots, ProducerStates
from logbus_broker.log.segment_list import SegmentPosition
from logbus_broker.logs import BROKER_BUG
from logbus_broker.protocol.batch import NO_PRODUCER_ID, BatchHeader, stamp
from logbus_broker.protocol.validation import NewBatch

logger = logging.getLogger("broker.log")

PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default of producer.id.expiration.ms


class Waiting(Protocol):
    """A waiter that may give up before what it waits for happens."""

    is_over: bool


Wait = tuple[
    int, Callable[[BrokerError | None], None], Waiting | None
]  # the offset waited for, the callback, and whether it still waits


@dataclass(slots=True)
class Staged:
    """Where a batch will be once the turn is written, or where it already is. One per batch, so not frozen: that would cost
    0.6 us."""

    base_offset: int
    duplicate: bool
    max_timestamp: int = field(default=-1, compare=False)


class Partition:
    """See the module docstring. Creating one reads the log to restore its producers' states."""

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
        self.impaired_reason = ""  # why nothing can be stored at the moment, although the log is online: storage_watch.py
        self.is_damaged = False  # a batch does not match its checksum: storage_watch.py
        self.is_led = False  # by this broker
        self.leader = NO_LEADER  # the id of the other broker that leads it
        self.leader_epoch = log.epochs.current
        self.epoch_start_offset = log.end_offset  # where this broker's epoch as leader began
        self.visible_offset = log.flushed_offset
        self.visible_position: SegmentPosition | None = None  # if known other than as a flush's end
        self.replicated: int | None = None  # None: there are no other replicas to wait for
        self.lacks_replicas = False  # fewer in sync than min.insync.replicas: acks=all is refused
        self.awaits_visible: list[Wait] = []  # ordered by offset, like the next
        self.awaits_replicated: list[Wait] = []
        self.producers = ProducerStates(producers_max=producers_max)
        self.producer_snapshots = ProducerSnapshots(self.producers, log, expiration_ms=producer_expiration_ms)
        self.traffic = Traffic()
        self.staged_views: list[memoryview] = []  # empty: nothing is staged
        self._staged_headers: list[BatchHeader] = []
        self._next_offset = log.end_offset
        if not log.offline_reason:
            self.producer_snapshots.restore()

    @property
    def replicated_offset(self) -> int:
        """Everything below it has been written by every in-sync replica."""
        return self.log.end_offset if self.replicated is None else self.replicated

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    # Roles

    def become_leader(self, epoch: int) -> None:
        """This broker leads from now on, in `epoch`, in which no broker has led before: its records begin at the log's end."""
        assert epoch >= self.leader_epoch, "epochs never fall"
        self.log.revoke_fast_path()
        if epoch != self.log.epochs.current:
            self.log.epochs.begin(epoch)
        self.is_led, self.leader, self.leader_epoch = True, NO_LEADER, epoch
        self.epoch_start_offset = self._next_offset = self.log.end_offset
        self.visible_position = None  # the log may have been truncated since it was set

    def become_follower(self, leader: int, epoch: int) -> None:
        """Another broker leads, in `epoch`."""
        assert epoch >= self.leader_epoch, "epochs never fall"
        self.resign()
        self.leader, self.leader_epoch = leader, epoch

    def resign(self) -> None:
        """This broker no longer leads, and the new leader is not known yet. What is staged will not be written."""
        self.log.revoke_fast_path()
        self.discard_staged()
        self.is_led, self.leader = False, NO_LEADER
        self.replicated, self.lacks_replicas = None, False

    def require_led(self) -> None:
        """Raises NotLeaderOrFollower if not led: for work that spans several turns, between which the lead may be lost."""
        if not self.is_led:
            raise NotLeaderOrFollower(f"this broker does not lead {self.name}")

    def learn_visible(self, offset: int) -> None:
        """As a follower: the leader's visible offset is `offset`. This broker does not vouch for what is not on its own disk."""
        self.visible_offset = max(self.visible_offset, min(offset, self.log.flushed_offset))

    # Writing

    def stage(self, batch: NewBatch) -> Staged:
        """Assign the batch its offset and stamp it, if its producer may send it now. Its bytes must not change until
        `write_staged`. StorageError: the log is offline, and its offsets may be anything."""
        if self.log.offline_reason:
            raise StorageError(self.log.offline_reason)
        header = batch.header
        is_numbered = header.producer_id != NO_PRODUCER_ID  # checked here: saves two calls per non-idempotent batch
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
        """Write everything staged; StorageError: none of it is stored, and nothing remains staged."""
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
        if not isinstance(error, StorageError):  # the batches are written, but their producers' states are not updated
            self.log.go_offline(f"{self.name}: the bookkeeping after a write failed: {error!r}")
        self._next_offset = self.log.end_offset
        if was_online and self.log.offline_reason:
            reason = self.log.offline_reason
            is_disk = isinstance(error.__cause__, OSError)
            logger.critical(
                "%s is offline until the broker is restarted: %s%s",
                self.name,
                reason,
                "" if is_disk else f" {BROKER_BUG}",
                exc_info=None if is_disk else error,
            )
            raise StorageError(reason) from error
        raise error

    # Writing in the fast path

    def settle(self, batches: Sequence[tuple[int, int, int]], end_offset: int) -> None:
        """These batches, which end at `end_offset`, were written ahead, and their producers are staged: all of that now takes
        effect. Each is given as size, last offset and largest timestamp. StorageError: the log is offline."""
        log = self.log
        try:
            log.segments.active.take_in(batches)
            self.producers.apply_staged()
            log.end_offset = self._next_offset = end_offset
        except Exception as error:
            self._not_written(error, was_online=True)

    def take_back(self, error: Exception) -> NoReturn:
        """A write ahead has failed, or must not take effect: none of it is stored. Raises StorageError."""
        try:
            self.log.take_back(error)
        except StorageError as refused:
            self._not_written(refused, was_online=True)

    def discard_staged(self) -> None:
        """Drop everything staged: it will not be written."""
        self.staged_views, self._staged_headers = [], []
        self.producers.discard_staged()
        self._next_offset = self.log.end_offset

    def close(self) -> None:
        """Save the producers' states, then flush and close the log. StorageError: the stop is not clean."""
        if not self.log.offline_reason:
            self.producer_snapshots.save()
        self.log.close()


# What the produce fast path relies on for one partition: everything that seldom changes has been checked, and what a batch
# changes is gathered here until it is written.


_STAMP = Struct(">qii")  # base offset, length, leader epoch: one call for what `stamp` does in two
_BASE_OFFSET = Struct(">q")

FastPathStates = dict[int, "FastPathState"]  # by partition


class FastPathState:
    """See the module docstring. Created by `enter_fast_path`."""

    __slots__ = (
        "age_ms_max",
        "batches",
        "end_offset",
        "epoch",
        "index",
        "is_numbered",
        "log",
        "message_bytes_max",
        "partition",
        "request",
        "segment",
        "segment_bytes",
        "size",
        "states",
        "timestamp_after_ms_max",
        "timestamp_before_ms_max",
        "views",
        "waits_for_flush",
        "write_ahead",
    )

    def __init__(self, partition: Partition, states: FastPathStates) -> None:
        self.partition = partition
        self.states = states
        self.log = partition.log
        self.segment = self.log.segments.active
        self.write_ahead = self.segment.write_ahead
        self.index = partition.index
        self.epoch = partition.leader_epoch
        config = self.log.config
        self.message_bytes_max = config.message_bytes_max
        self.timestamp_after_ms_max = config.timestamp_after_ms_max
        self.timestamp_before_ms_max = config.timestamp_before_ms_max
        self.segment_bytes = config.segment_bytes
        self.age_ms_max = config.segment_age_ms_max
        self.waits_for_flush = config.acks_all_waits_for_flush
        self.request = 0  # number of the last request naming it: each may name a partition once
        self.reset()

    def reset(self) -> None:
        """Start over with nothing gathered."""
        self.views: list[memoryview] = []
        self.batches: list[tuple[int, int, int]] = []  # size, last offset, largest timestamp
        self.size = 0
        self.end_offset = 0  # where the log will end: valid only while something is gathered
        self.is_numbered = False

    def cancel(self) -> None:
        """See the module docstring."""
        self.states.pop(self.index, None)
        self.states = {}

    def add(self, buffer: memoryview, position: int, size: int, header: tuple[int, ...]) -> int:
        """Stamp the batch in `buffer` and gather it; returns its base offset. `header` has the fields of a BatchHeader."""
        base_offset = self.end_offset if self.views else self.log.end_offset
        last_offset = base_offset + header[6]
        _STAMP.pack_into(buffer, position, base_offset, header[1], self.epoch)
        self.views.append(buffer[position : position + size])
        self.batches.append((size, last_offset, header[8]))
        self.size += size
        self.end_offset = last_offset + 1
        if header[9] >= 0:
            self.is_numbered = True
            numbered: BatchHeader = tuple.__new__(BatchHeader, header)
            self.partition.producers.stage(numbered.stamped(base_offset, self.epoch))
        return base_offset

    def undo(self) -> None:
        """Restore the gathered batches as they arrived, except the epoch, which is not read before it is stamped again."""
        for view in self.views:
            _BASE_OFFSET.pack_into(view, 0, 0)
        if self.is_numbered:
            self.partition.producers.discard_staged()
        self.reset()


def enter_fast_path(partition: Partition, states: FastPathStates) -> None:
    """Put a state of the partition into `states` by its index, if the fast path may be taken for it."""
    log = partition.log
    config = log.config
    is_plain = config.timestamp_type == "CreateTime" and not config.is_compacted
    if (
        not (partition.is_led and is_plain)
        or partition.is_internal
        or partition.replicated is not None
        or partition.lacks_replicas
    ):
        return
    if log.offline_reason or not log.segments.active.has_index_loaded:
        return
    state = FastPathState(partition, states)
    if log.grant_fast_path(state.cancel):
        states[partition.index] = state
