"""Logs that hold what a leader sent, on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from logbus_broker.log.leader_epochs import LeaderEpochs, TruncationTicket
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.producer_state import ProducerState, ProducerStates
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.protocol.validation import split_replicated

from tests.sim.disk import SimDisk
from tests.support.batches import NOW_MS, stamped
from tests.support.logs import open_log


class Sent(NamedTuple):
    """One batch of a leader: how many offsets compaction has removed before it, its epoch, its producer, its record count."""

    gap: int
    epoch: int
    producer: int  # -1: not idempotent
    records: int


class Replica:
    """A follower's partition; `batches` are what its log should hold."""

    def __init__(self, disk: SimDisk | None = None, **options: Any) -> None:
        self.disk = disk or SimDisk(now_ms=lambda: NOW_MS)
        self.options = options
        self.batches: list[bytes] = []
        self.sequences: dict[int, int] = {}
        self.partition = self._open()

    def _open(self) -> Partition:
        log = open_log(self.disk.root, filesystem=self.disk, is_replica=True, **self.options)
        return Partition("t", 0, UUID(int=1), log)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def take(self, *sent: Sent) -> None:
        """Append the batches of one answer of the leader."""
        data, offset = bytearray(), self.log.end_offset
        for row in sent:
            sequence = self.sequences.get(row.producer, 0)
            batch = build_batch(
                [NewRecord(timestamp=NOW_MS + offset, key=None, value=b"v" * 20)] * row.records,
                **_numbered(row.producer, sequence),
            )
            self.sequences[row.producer] = sequence + row.records
            view, header = stamped(batch, offset + row.gap, row.epoch)
            data += view
            self.batches.append(bytes(view))
            offset = header.next_offset
        headers = split_replicated(memoryview(data), self.log.end_offset, 1 << 20, self.log.epochs.written.latest)
        self.log.append_replica(memoryview(data), headers)
        for header in headers:
            self.partition.producers.apply(header)

    def cut(self, begin: Callable[[PartitionLog], TruncationTicket], last: int | None = None) -> TruncationTicket:
        """Begin and run a truncation; the machine stops within the disk call after `last` of them."""
        ticket = begin(self.log)
        self.disk.calls_left = -1 if last is None else last
        ticket.run()
        self.disk.calls_left = -1
        self.log.finish_truncation(ticket)
        self.keep_what_is_within()
        return ticket

    def keep_what_is_within(self) -> None:
        """Drop batches before the log start offset or beyond the log end offset."""
        start, end = self.log.log_start_offset, self.log.end_offset
        self.batches = [
            one for one in self.batches if start <= read_header(one).base_offset and read_header(one).next_offset <= end
        ]
        self.sequences = {
            producer_id: (state.batches[-1].last_sequence + 1) for producer_id, state in producers_of(self.batches).items()
        }


def _numbered(producer: int, sequence: int) -> dict[str, int]:
    return {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if producer >= 0 else {}


def producers_of(batches: Sequence[bytes]) -> dict[int, ProducerState]:
    """The producer states that follow from these batches."""
    states = ProducerStates()
    for batch in batches:
        states.apply(read_header(batch))
    return dict(states.stored())


def epochs_of(batches: Sequence[bytes]) -> list[tuple[int, int]]:
    """The leader epochs that follow from these batches."""
    epochs = LeaderEpochs()
    for batch in batches:
        header = read_header(batch)
        epochs.assign(header.leader_epoch, header.base_offset)
    return epochs.entries
