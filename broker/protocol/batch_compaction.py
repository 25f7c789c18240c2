"""One batch, compacted: the records that are still the last of their key, in a batch that keeps its place in the log.

Base offset, last offset and producer fields stay as they are, so offsets are never assigned twice and a producer's sequence can
still be read from the batch. A tombstone (null value) that is the last of its key stays until its horizon, so that a reader of
the log from the start sees it; the horizon is set when compaction first sees the tombstone (KIP-534). A batch without remaining
records is removed, unless its header is still needed: then it stays without records. Pure; all as Apache Kafka writes it.

A producer wrote these records, perhaps before the topic was compacted, when nothing checked them. What compaction does not need,
values and headers, is copied as it is; what it needs and cannot read is an InvalidRecord or CorruptMessage, which aborts the
whole pass and leaves the log as it was. Skipping only such a batch would be wrong: an older value of one of its keys could
outlive the tombstone that deletes it. A batch may hold millions of records, so only a flag is kept for each.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.protocol.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from broker.protocol.batch_builder import seal
from broker.protocol.compression import compress
from broker.protocol.records import read_keys, record_bytes, record_heads, wrapped, write_varint

IsNewest = Callable[[bytes | None, int], bool]
_HORIZON_MS_MAX = (1 << 63) - 1  # the most a header can hold, for a delete.retention.ms that means "never"


def compact_batch(batch: bytes, *, is_newest: IsNewest, now_ms: int, delete_retention_ms: int, header_needed: bool) -> bytes:
    """What is left of the batch: the same bytes if nothing changes, none if it may be removed. `is_newest(key, offset)` returns
    whether no later record has that key."""
    header = read_header(batch)
    if header.is_control:
        return batch
    horizon_ms = header.delete_horizon_ms
    tombstones_stay = horizon_ms is None or now_ms < horizon_ms
    data = record_bytes(header, batch)
    kept, has_tombstone = bytearray(), False
    for record in read_keys(data, header):
        stays = is_newest(record.key, record.offset) and (tombstones_stay or not record.is_tombstone)
        has_tombstone = has_tombstone or (stays and record.is_tombstone)
        kept.append(stays)
    if not any(kept):
        return _without_records(header) if header_needed else b""
    if horizon_ms is None and has_tombstone:
        return _rewritten(header, data, kept, horizon_ms=min(now_ms + delete_retention_ms, _HORIZON_MS_MAX))
    return batch if all(kept) else _rewritten(header, data, kept, horizon_ms=None)


def _without_records(header: BatchHeader) -> bytes:
    length = BATCH_HEADER_BYTES - LENGTH_END
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    empty = header._replace(length=length, attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    batch = bytearray(BATCH_HEADER_BYTES)
    seal(batch, empty)
    return bytes(batch)


def _rewritten(header: BatchHeader, data: bytes, kept: bytearray, *, horizon_ms: int | None) -> bytes:
    """The batch with the kept records. A new horizon replaces the base timestamp, so each record's timestamp delta is written
    again; the rest of the record is unchanged."""
    payload, largest = bytearray(), -(1 << 63)
    for stays, (start, end, timestamp_delta, offset_delta, position) in zip(kept, record_heads(data, header), strict=True):
        if not stays:
            continue
        timestamp = header.max_timestamp if header.timestamp_type_is_append else wrapped(header.base_timestamp + timestamp_delta)
        largest = max(largest, timestamp)
        if horizon_ms is None:
            payload += data[start:end]
            continue
        head = bytearray(1)  # attributes, unused
        write_varint(head, wrapped(timestamp - horizon_ms))
        write_varint(head, offset_delta)
        write_varint(payload, len(head) + end - position)
        payload += head
        payload += data[position:end]
    if horizon_ms is not None:
        header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)
    batch = bytearray(BATCH_HEADER_BYTES) + compress(header.compression, payload)
    length = len(batch) - LENGTH_END
    seal(batch, header._replace(length=length, max_timestamp=largest, record_count=sum(kept)))
    return bytes(batch)
