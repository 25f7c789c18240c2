"""Which partitions cannot be stored at the moment, although none of their records is lost: the disk is full, or does not answer,
or what is stored is damaged.

A write that the disk refuses is taken back, and the log is as it was (partition_log.py), so nothing needs a restart: there may be
room again in a moment. A flush that does not end cannot be told from a slow one until it does. Until then
`Partition.impaired_reason` says what is wrong. In a cluster such a replica gives its lead away and is not in sync
(replication/isr.py, replication/led_partition.py); a broker alone refuses producers, and goes on serving what it has.

    a write was refused       over when PROBE_BYTES could be written to the data directory: an idle partition has no other way to
                              show that there is room
    a flush takes too long    over when it ends (logbus.replica.flush.max.ms)
    a batch is damaged        over when the log has been fetched anew from another replica (replication/replica_manager.py)

Damage is looked for where a follower asks again for what it was sent, which it does if a checksum does not match: this broker
checks the same bytes, off the loop, as the follower did. What is not damaged here was damaged on the way.

Whatever changes in one turn is one line in the log, however many partitions it concerns, and one in /health while it lasts. A
disk with room now and then must not move leads back and forth: each time that it is full again soon, it is probed later.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf

from logbus_broker import errors
from logbus_broker.clock import Clock
from logbus_broker.filesystem import FileSlice, FileSystem
from logbus_broker.log.flusher import Flusher
from logbus_broker.log.manager import PartitionManager
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol.validation import split_replicated
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.log")

PROBE_BYTES = 1 << 20
_PROBE = "room.tmp"
_LOOK_SECONDS = 1.0  # how often to look for flushes that take too long, and between two probes
_RELAPSE_SECONDS = 60.0  # a disk that was full less than this ago
_PAUSE_SECONDS_MAX = 60.0
_CHECK_SECONDS = 10.0  # between two checks of one partition: a follower asks again every second, and each reads a megabyte
_NAMES_MAX = 5  # in one line


class StorageWatch:
    """See the module docstring. `on_changed` is called for each partition that has become impaired, or no longer is. All methods
    run on the loop's thread."""

    def __init__(
        self,
        partitions: PartitionManager,
        flusher: Flusher,
        thread_pool: ThreadPool,
        filesystem: FileSystem,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self.on_changed: Callable[[Partition], None] = lambda partition: None
        self._partitions = partitions
        self._flusher = flusher
        self._thread_pool = thread_pool
        self._filesystem = filesystem
        self._clock = clock
        self._path = config.log_dirs / _PROBE
        self._flush_seconds_max = config.replica_flush_ms_max / 1000
        # A broker alone looks when somebody asks for its health: nobody could take over.
        self._is_clustered = config.is_clustered
        self._outlook = "left to the other replicas in sync" if self._is_clustered else "producers are refused"
        self._refused: dict[Partition, str] = {}
        self._overdue: dict[Partition, str] = {}
        self._damaged: dict[Partition, str] = {}
        self._next_check: dict[Partition, float] = {}  # those that were checked: when they may be checked again
        self.damaged_count = 0  # since the start
        self._news: dict[Partition, None] = {}
        self._look_at = clock.monotonic() if self._is_clustered else inf
        self._probe_at = inf
        self._pause = _LOOK_SECONDS
        self._mended_at = -inf
        self.due = self._look_at

    def refused(self, partition: Partition, error: errors.StorageError) -> None:
        """The disk has refused a write, which was taken back."""
        if not self._refused:
            now = self._clock.monotonic()
            is_relapse = now - self._mended_at < _RELAPSE_SECONDS
            self._pause = min(self._pause * 2, _PAUSE_SECONDS_MAX) if is_relapse else _LOOK_SECONDS
            self._probe_at = now + self._pause
        cause = error.__cause__
        self._refused[partition] = (isinstance(cause, OSError) and cause.strerror) or str(error)
        self._update(partition)

    def suspect(self, partition: Partition, offset: int, bytes_max: int, last_epoch: int) -> None:
        """A follower, whose log ends in `last_epoch`, asks again for what it was sent from `offset` on."""
        now = self._clock.monotonic()
        if partition in self._damaged or now < self._next_check.get(partition, -inf):
            return
        self._next_check[partition] = now + _CHECK_SECONDS
        try:
            piece = partition.log.locate(offset, bytes_max, upto_offset=partition.log.end_offset)
        except errors.OffsetOutOfRange:
            return
        except errors.StorageError as error:
            self._checked(partition, None, error)
            return
        check = partial(self._check, piece, partition.leader_epoch, last_epoch)
        self._thread_pool.submit(check, partial(self._checked, partition))

    def work(self, now: float) -> None:
        """Look for what has changed, and tell it."""
        if now >= self._look_at:
            self._look(now)
        if now >= self._probe_at:
            self._probe_at = inf
            self._thread_pool.submit(self._probe, self._probed)
        self._tell()
        self.due = min(self._look_at, self._probe_at)

    def impaired(self) -> dict[Partition, str]:
        """Which partitions are impaired now, and why."""
        self._look(self._clock.monotonic())
        return {partition: partition.impaired_reason for partition in (*self._refused, *self._overdue, *self._damaged)}

    def lines(self) -> list[str]:
        """The same, a line for each reason."""
        return [
            f"{len(partitions)} of {len(self._partitions)} partitions cannot be stored: {reason} ({_names(partitions)})"
            for reason, partitions in _by_reason(self.impaired()).items()
        ]

    def _look(self, now: float) -> None:
        reason = f"a flush takes longer than {self._flush_seconds_max:g} s (logbus.replica.flush.max.ms)"
        before, self._overdue = self._overdue, dict.fromkeys(self._flusher.overdue(now - self._flush_seconds_max), reason)
        for partition in (*before, *self._overdue):
            self._update(partition)
        for reasons in (self._refused, self._damaged):
            for partition in list(reasons):
                if partition.log.offline_reason or not self._partitions.holds(partition):
                    del reasons[partition]
                    self._update(partition)
        self._next_check = {partition: at for partition, at in self._next_check.items() if at > now}
        self._look_at = now + _LOOK_SECONDS if self._is_clustered or self._refused or self._overdue else inf

    def _update(self, partition: Partition) -> None:
        reason = self._damaged.get(partition) or self._refused.get(partition) or self._overdue.get(partition, "")
        if bool(reason) != bool(partition.impaired_reason):
            self._news[partition] = None
            self.due = -inf
        partition.impaired_reason = reason

    def _tell(self) -> None:
        if not self._news:
            return
        news, self._news = self._news, {}
        news = {partition: None for partition in news if self._partitions.holds(partition)}
        for reason, partitions in _by_reason({partition: partition.impaired_reason for partition in news}).items():
            if reason:
                logger.critical("cannot store %s: %s: %s until that is over", _names(partitions), reason, self._outlook)
            else:
                logger.warning("%s can be stored again", _names(partitions))
        for partition in news:
            self.on_changed(partition)

    def _checked(self, partition: Partition, _: object, error: BaseException | None) -> None:
        if error is None or partition.log.offline_reason or not self._partitions.holds(partition):
            return
        if not isinstance(error, errors.BrokerError | OSError):
            raise error
        self.damaged_count += 1
        self._damaged[partition] = f"its log is damaged: {error}"
        partition.is_damaged = True
        self._update(partition)

    # Any thread

    def _check(self, piece: FileSlice, epoch: int, last_epoch: int) -> None:
        """ReplicationRefused, as a follower would raise it; OSError."""
        try:
            records = self._filesystem.read_at(piece.file, piece.length, piece.position)
        finally:
            piece.release()
        if records:
            split_replicated(memoryview(records), 0, epoch, last_epoch)

    def _probe(self) -> None:
        try:
            # Random, so that no file system can store it in less.
            self._filesystem.write_bytes(self._path, os.urandom(PROBE_BYTES), durable=False)
        finally:
            self._filesystem.remove(self._path)

    def _probed(self, _: object, error: BaseException | None) -> None:
        self.due = -inf
        now = self._clock.monotonic()
        if error is not None:
            self._probe_at = now + self._pause
            return
        self._mended_at = now
        mended, self._refused = self._refused, {}
        for partition in mended:
            self._update(partition)


def _by_reason(reasons: Mapping[Partition, str]) -> dict[str, list[Partition]]:
    grouped: dict[str, list[Partition]] = {}
    for partition, reason in reasons.items():
        grouped.setdefault(reason, []).append(partition)
    return grouped


def _names(partitions: Iterable[Partition]) -> str:
    names = [partition.name for partition in partitions]
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
