"""Record batches for tests of the broker's records, storage and partitions."""

from __future__ import annotations

from collections.abc import Sequence

from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, LENGTH_END, BatchHeader, read_header, stamp
from logbus_broker.protocol.records import NewRecord, build_batch, seal, write_varint
from logbus_broker.protocol.validation import NewBatch, validate_new_batch

NOW_MS = 1_700_000_000_000


def records_at(timestamps: Sequence[int], *, value: bytes = b"value") -> list[NewRecord]:
    """One record for each timestamp."""
    return [NewRecord(timestamp=timestamp, value=value) for timestamp in timestamps]


def plain_batch(count: int = 1, *, timestamp: int = NOW_MS, value: bytes = b"value", codec: int = 0) -> bytearray:
    """`count` records with the same timestamp."""
    return build_batch(records_at([timestamp] * count, value=value), codec=codec)


def stamped(batch: bytearray, base_offset: int, leader_epoch: int = 0) -> tuple[memoryview, BatchHeader]:
    """A batch as a partition passes it to its log."""
    stamp(batch, base_offset, leader_epoch)
    return memoryview(batch), read_header(batch)


def validated(batch: bytearray, *, now_ms: int = NOW_MS) -> NewBatch:
    """A batch as the produce handler passes it to a partition."""
    return validate_new_batch(memoryview(batch), message_bytes_max=1 << 30, now_ms=now_ms)


def produced(producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0) -> bytearray:
    """A batch of an idempotent producer."""
    return build_batch(records_at([NOW_MS] * count), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def altered(batch: bytearray, **changes: int) -> bytearray:
    """The batch with changed header fields and a matching checksum."""
    copy = bytearray(batch)
    seal(copy, read_header(copy)._replace(**changes))
    return copy


def with_deltas(*offset_deltas: int, timestamp_delta: int = 0, **changes: int) -> bytearray:
    """A keyed record for each offset delta, valid or not, under a header that is correct except for `changes`."""
    payload = bytearray()
    for offset_delta in offset_deltas:
        body = bytearray(1)
        write_varint(body, timestamp_delta)
        write_varint(body, offset_delta)
        body += b"\x02k\x02v\x00"
        write_varint(payload, len(body))
        payload += body
    batch = plain_batch(len(offset_deltas))[:BATCH_HEADER_BYTES] + payload
    return altered(batch, length=len(batch) - LENGTH_END, **changes)
