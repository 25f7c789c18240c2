"""The memory of producers as the bytes of a `.snapshot` file. Pure.

The first part is Kafka's own (version 1): checksum, then for each producer its id, its epoch and its last batch. Kafka keeps one
batch there; we remember five, since that many may be in flight and each of them may come again, so the four before the last
follow behind, under the same checksum, where Kafka's tools do not look.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError

from broker.partitions.producer_state import SEQUENCE_MASK, ProducerState, ProducerStates, SentBatch
from broker.records.crc import crc32c

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
