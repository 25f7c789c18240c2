"""Keeps the memory of one partition's producers (`producer_state.py`, the rules) through restarts, and lets it end.

At the start the newest snapshot is taken and only the batches behind it are read; where there is none, everything that was
written within the last `producer.id.expiration.ms`. A producer that was silent for that long is forgotten. Its silence is
measured by the broker's own monotonic clock and not by the timestamps of its records, which may be of any time: every now and
then the end of the log is noted, and a producer whose last batch lies before an end that was noted long enough ago is silent
since then. So remembering costs nothing on the way of a record.
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

MARKS = 16  # ends noted within the time of expiration: a producer may be remembered a sixteenth longer


class ProducerMemory:
    """Fills `states`, and writes them down, for the log that they belong to."""

    __slots__ = ("_expiration_ms", "_log", "_marks", "_states")

    def __init__(self, states: ProducerStates, log: PartitionLog, *, expiration_ms: int) -> None:
        self._states = states
        self._log = log
        self._expiration_ms = expiration_ms
        self._marks: deque[tuple[float, int]] = deque()
        log.before_roll, log.reread = self.save, self.reread

    def restore(self) -> None:
        """Remember what the log says; called once, at the start."""
        log = self._log
        recent_offset = log.recent_offset(self._expiration_ms)
        try:
            log.snapshots.find(log.end_offset)
        except OSError as error:
            logger.warning("%s: its snapshots cannot be listed: %s", log.directory, error)
        self._read(self._states, log.segments, recent_offset=recent_offset, end_offset=log.end_offset)

    def reread(self, segments: SegmentList, end_offset: int) -> Callable[[], None]:
        """The log was cut to these segments: remember what they say. Any thread; what it returns is for the loop."""
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
        """Its offset, or None where there is none for an end up to `end_offset`."""
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
        """Write a snapshot for the log's end, unless there is one. A disk that has no room for it costs the next start time,
        nothing else."""
        log = self._log
        if log.end_offset == 0 or (log.snapshots.offsets and log.snapshots.offsets[-1] >= log.end_offset):
            return
        try:
            log.snapshots.write(log.end_offset, encode_producers(self._states))
        except OSError as error:
            logger.warning("%s: no snapshot of its producers: %s", log.directory, error)

    def expire(self, now: float) -> int:
        """Forget who has been silent for too long at the monotonic time `now`; how many that were."""
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
# The first part is Kafka's own (version 1): checksum, then for each producer its id, its epoch and its last batch. Kafka keeps
# one batch there; we remember five, since that many may be in flight and each of them may come again, so the four before the
# last follow after all of that, under the same checksum, where Kafka's tools do not look.

_VERSION = 1
_HEAD = Struct(">hI")  # version, checksum of all behind it
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")  # id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction
_OLDER = Struct(">qiiqqq")  # producer id, then a batch as it is remembered
_NO_EPOCH = _NO_TRANSACTION = -1


def encode_producers(states: ProducerStates) -> bytes:
    """Everything that is stored, nothing that is only staged."""
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
    """Producer id to state in the order of their last batches; None where the bytes are not such a snapshot, whole."""
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
