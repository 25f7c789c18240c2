"""A partition that the fast lane may write to: everything that seldom changes has been checked, and what a batch changes is
gathered here until it is written.

While it is armed this broker leads the partition, in `epoch`, and there are no other replicas; its log is online and is not being
truncated; `segment` is the active segment; the settings are those below. Whatever changes one of these cancels it first
(`PartitionLog.disarm`, the only place): it is then no longer in `home`, where the lane looks for it, and no longer refers to
`home` either. Everything that each batch changes is read from the log, the segment and the index themselves: there is no second
copy of the log end offset.

A run of the lane gathers batches (`add`), writes them (the segment's `write_ahead`), and then either they take effect (`reset`
after `ProduceTurn.settle`) or their stamps are removed (`undo`). Between two runs nothing is gathered.

Hot path, once per batch: `takes`, `add`.
"""

from __future__ import annotations

from struct import Struct

from broker.partitions.partition import Partition
from broker.records.batch import BatchHeader
from broker.storage.offset_index import ENTRIES_MAX, ENTRY_BYTES
from broker.storage.rolling import RELATIVE_OFFSET_MAX, age_ms_max

_STAMP = Struct(">qii")  # base offset, length, leader epoch: one call for what `stamp` does in two
_BASE_OFFSET = Struct(">q")
_INDEX_BYTES_MAX = ENTRIES_MAX * ENTRY_BYTES

Home = dict[int, "ArmedPartition"]


class ArmedPartition:
    """See the module docstring. Created by `arm`."""

    __slots__ = (
        "age_ms_max",
        "batches",
        "end_offset",
        "entries",
        "epoch",
        "home",
        "index",
        "is_numbered",
        "log",
        "message_bytes_max",
        "partition",
        "request",
        "segment",
        "segment_bytes",
        "size",
        "timestamp_after_ms_max",
        "timestamp_before_ms_max",
        "views",
        "waits_for_flush",
        "write_ahead",
    )

    def __init__(self, partition: Partition, home: Home) -> None:
        self.partition = partition
        self.home = home
        self.log = partition.log
        self.segment = self.log.segments.active
        self.entries = self.segment.index.offsets
        self.write_ahead = self.segment.write_ahead
        self.index = partition.index
        self.epoch = partition.leader_epoch
        config = self.log.config
        self.message_bytes_max = config.message_bytes_max
        self.timestamp_after_ms_max = config.timestamp_after_ms_max
        self.timestamp_before_ms_max = config.timestamp_before_ms_max
        self.segment_bytes = config.segment_bytes
        self.age_ms_max = age_ms_max(config)
        self.waits_for_flush = config.acks_all_waits_for_flush
        self.request = 0  # the lane's number of the last request naming it: each may name a partition once
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
        self.home.pop(self.index, None)
        self.home = {}

    def takes(self, size: int, last_offset_delta: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether the next batch may follow the gathered ones in the same segment, that is, `should_roll` would be false. Nothing
        may be staged on the partition: what arrived first is written first."""
        segment, log = self.segment, self.log
        if self.partition.staged_views or segment.size + self.size + size > self.segment_bytes:
            return False
        end_offset = self.end_offset if self.views else log.end_offset
        first = segment.first_timestamp
        age_ms = max_timestamp - first if first is not None and first >= 0 <= max_timestamp else now_ms - log.rolled_ms
        return (
            age_ms <= self.age_ms_max
            and end_offset + last_offset_delta - segment.base_offset <= RELATIVE_OFFSET_MAX
            and len(self.entries.data) < _INDEX_BYTES_MAX
        )

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


def arm(partition: Partition, home: Home) -> None:
    """Put the partition into `home` by its index, if it may be armed."""
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
    armed = ArmedPartition(partition, home)
    if log.arm(armed):
        home[partition.index] = armed
