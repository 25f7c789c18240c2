"""One batch, compacted: the records that are still the last of their key, in a batch that keeps its place in the log.

Base offset, last offset and producer fields stay as they are, so offsets are never given twice and a producer's sequence can
still be read from the batch. A tombstone (null value) that is the last of its key stays until its horizon, so that who reads
the log from the start learns of it; the horizon is set when compaction first meets it (KIP-534). A batch of which nothing is
left vanishes, unless its header is still needed: then it stays without records. Pure; all as Apache Kafka writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.records.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from broker.records.builder import encode_record, seal
from broker.records.compression import compress
from broker.records.reader import KeyedRecord, read_keys, read_records

IsNewest = Callable[[bytes | None, int], bool]


def compact_batch(batch: bytes, *, is_newest: IsNewest, now_ms: int, delete_retention_ms: int, header_needed: bool) -> bytes:
    """What is left of the batch: the same bytes where nothing changes, none where it may vanish. `is_newest(key, offset)` says
    whether no later record has that key."""
    header = read_header(batch)
    if header.is_control:
        return batch
    horizon_ms = header.delete_horizon_ms
    tombstones_stay = horizon_ms is None or now_ms < horizon_ms
    records = list(read_keys(batch))
    kept = [one for one in records if is_newest(one.key, one.offset) and (tombstones_stay or not one.is_tombstone)]
    if not kept:
        return _without_records(header) if header_needed else b""
    if horizon_ms is None and any(one.is_tombstone for one in kept):
        return _with_horizon(batch, header, kept, now_ms + delete_retention_ms)
    return batch if len(kept) == len(records) else _with_records(header, kept, b"".join(one.raw for one in kept))


def _without_records(header: BatchHeader) -> bytes:
    length = BATCH_HEADER_BYTES - LENGTH_END
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    empty = header._replace(length=length, attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    batch = bytearray(BATCH_HEADER_BYTES)
    seal(batch, empty)
    return bytes(batch)


def _with_horizon(batch: bytes, header: BatchHeader, kept: Sequence[KeyedRecord], horizon_ms: int) -> bytes:
    """The horizon takes the place of the base timestamp, so each record states its difference anew."""
    offsets = {one.offset for one in kept}
    payload = b"".join(
        encode_record(record, record.timestamp - horizon_ms, record.offset - header.base_offset)
        for record in read_records(batch)
        if record.offset in offsets
    )
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)
    return _with_records(header, kept, payload)


def _with_records(header: BatchHeader, kept: Sequence[KeyedRecord], payload: bytes) -> bytes:
    payload = compress(header.compression, payload)
    largest = header.max_timestamp if header.timestamp_type_is_append else max(one.timestamp for one in kept)
    batch = bytearray(BATCH_HEADER_BYTES) + payload
    length = len(batch) - LENGTH_END
    seal(batch, header._replace(length=length, max_timestamp=largest, record_count=len(kept)))
    return bytes(batch)
