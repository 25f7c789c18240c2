"""What the produce fast path relies on for one partition: everything that seldom changes has been checked, and what a batch
changes is gathered here until it is written.

While a partition has such a state, this broker leads it, in `epoch`, and there are no other replicas; its log is online and is
not being truncated; `segment` is the active segment; the settings are those below. Whatever changes one of these cancels the
state first (`PartitionLog.revoke_fast_path`, the only place): it is then no longer in `states`, where the fast path looks for it,
and no longer refers to them either. Everything that each batch changes is read from the log, the segment and the index
themselves: there is no second copy of the log end offset.

The fast path gathers batches (`add`), writes them (the segment's `write_ahead`), and then either they take effect (`reset` after
`ProduceTurn.settle`) or their stamps are removed (`undo`). Between two turns nothing is gathered.

Hot path, once per batch: `add`. Whether a batch still fits into the segment is asked where it is read (produce_fast_path.py): a
method here in between costs 50 ns a batch.
"""

from __future__ import annotations

from struct import Struct

from logbus_broker.log.partition import Partition
from logbus_broker.protocol.batch import BatchHeader

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
