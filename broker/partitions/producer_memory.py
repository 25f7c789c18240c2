"""Carries the states of one partition's producers (`producer_state.py` has the rules) across restarts, and expires them.

At the start the newest snapshot is loaded and only the batches after it are read; if there is none, everything written within
the last `producer.id.expiration.ms`. A producer that was silent for that long is forgotten. Its silence is measured by the
broker's own monotonic clock, not by the timestamps of its records, which may be arbitrary: every now and then the end of the log
is noted, and a producer whose last batch is before an end noted long enough ago has been silent since then. So expiration costs
nothing on the hot path.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError

from broker.partitions.producer_state import SEQUENCE_MASK, ProducerState, ProducerStates, SentBatch
from broker.records.crc import crc32c
from broker.storage.partition_log import PartitionLog
from broker.storage.segment_list import SegmentList

logger = logging.getLogger("broker.producers")

MARKS = 16  # ends noted per expiration time: a producer may be remembered a sixteenth longer


class ProducerMemory:
    """Loads and saves `states` for the log they belong to."""

    __slots__ = ("_expiration_ms", "_log", "_marks", "_states")

    def __init__(self, states: ProducerStates, log: PartitionLog, *, expiration_ms: int) -> None:
        self._states = states
        self._log = log
        self._expiration_ms = expiration_ms
        self._marks: deque[tuple[float, int]] = deque()
        log.before_roll, log.reread = self.save, self.reread

    def restore(self) -> None:
        """Rebuild the states from the log; called once, at the start."""
        log = self._log
        recent_offset = log.recent_offset(self._expiration_ms)
        try:
            log.snapshots.find(log.end_offset)
        except OSError as error:
            logger.warning("%s: its snapshots cannot be listed: %s", log.directory, error)
        self._read(self._states, log.segments, recent_offset=recent_offset, end_offset=log.end_offset)

    def reread(self, segments: SegmentList, end_offset: int) -> Callable[[], None]:
        """The log was truncated to these segments: rebuild the states from them. Any thread; the loop calls what it returns."""
        recent_offset = self._log.recent_offset(self._expiration_ms, segments)
        states = self._states.emptied()
        self._read(states, segments, recent_offset=recent_offset, end_offset=end_offset)

        def install() -> None:
            self._states.restore(states.stored())
            self._marks = deque((noted, min(offset, end_offset)) for noted, offset in self._marks)

        return install

    def _read(self, states: ProducerStates, segments: SegmentList, *, recent_offset: int, end_offset: int) -> None:
        start = self._read_snapshot(states, end_offset)
        start = recent_offset if start is None else start
        if start < end_offset:
            for _, _, header in segments.walk_from(start):
                states.apply(header)
        states.forget_before(recent_offset)

    def _read_snapshot(self, states: ProducerStates, end_offset: int) -> int | None:
        """Load the newest readable snapshot up to `end_offset`; returns its offset, or None if there is none."""
        for offset in reversed([offset for offset in self._log.snapshots.offsets if offset <= end_offset]):
            try:
                producers = decode_producers(self._log.snapshots.read(offset))
            except OSError:
                continue
            if producers is not None:
                states.restore(producers)
                return offset
        return None

    def save(self) -> None:
        """Write a snapshot for the log's end, unless there is one. If the disk has no room for it, the next start takes longer,
        nothing else."""
        log = self._log
        if log.end_offset == 0 or (log.snapshots.offsets and log.snapshots.offsets[-1] >= log.end_offset):
            return
        try:
            log.snapshots.write(log.end_offset, encode_producers(self._states))
        except OSError as error:
            logger.warning("%s: no snapshot of its producers: %s", log.directory, error)

    def expire(self, now: float) -> int:
        """Forget producers silent for too long at the monotonic time `now`; returns how many."""
        if not len(self._states):
            return 0
        seconds, end_offset = self._expiration_ms / 1000, self._log.end_offset
        if not self._marks or (self._marks[-1][1] < end_offset and now - self._marks[-1][0] >= seconds / MARKS):
            self._marks.append((now, end_offset))
        before = 0
        while self._marks and now - self._marks[0][0] >= seconds:
            before = self._marks.popleft()[1]
        return self._states.forget_before(before)


# -- the bytes of a `.snapshot` file ----------------------------------------------------------------------------------------
#
# The first part is Kafka's own format (version 1): checksum, then each producer's id, epoch and last batch. Kafka keeps one batch
# there; we remember five, since five may be in flight and each of them may be resent, so the four before the last are appended
# after that, under the same checksum, where Kafka's tools do not look.

_VERSION = 1
_HEAD = Struct(">hI")  # version, checksum of everything after it
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")  # id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction
_OLDER = Struct(">qiiqqq")  # producer id, then a batch as it is remembered
_NO_EPOCH = _NO_TRANSACTION = -1


def encode_producers(states: ProducerStates) -> bytes:
    """Everything stored, nothing that is only staged."""
    producers = states.stored()
    body = bytearray(_COUNT.pack(len(producers)))
    older = bytearray()
    for producer_id, state in producers.items():
        last = state.batches[-1]
        delta = last.last_offset - last.base_offset
        body += _PRODUCER.pack(
            producer_id, state.epoch, last.last_sequence, last.last_offset, delta, last.max_timestamp, _NO_EPOCH, _NO_TRANSACTION
        )
        for batch in state.batches[:-1]:
            older += _OLDER.pack(producer_id, *batch)
    body += older
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_producers(data: bytes) -> dict[int, ProducerState] | None:
    """Producer id to state, in the order of their last batches; None if the bytes are not a complete snapshot."""
    try:
        version, checksum = _HEAD.unpack_from(data)
        if version != _VERSION or crc32c(memoryview(data)[_HEAD.size :]) != checksum:
            return None
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        first = _HEAD.size + _COUNT.size
        end = first + count * _PRODUCER.size
        older: dict[int, tuple[SentBatch, ...]] = {}
        for producer_id, *batch in _OLDER.iter_unpack(memoryview(data)[end:]):
            older[producer_id] = (*older.get(producer_id, ()), SentBatch(*batch))
        found = sorted(_producers(memoryview(data)[first:end]), key=lambda row: row[2].last_offset)
    except (StructError, ValueError):
        return None
    return {producer_id: ProducerState(epoch, (*older.get(producer_id, ()), last)) for producer_id, epoch, last in found}


def _producers(view: memoryview) -> Iterator[tuple[int, int, SentBatch]]:
    for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ in _PRODUCER.iter_unpack(view):
        base_sequence = (last_sequence - delta) & SEQUENCE_MASK
        yield producer_id, epoch, SentBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
