"""Builds v2 batches: of new records, which are the broker's own and those of tests, and of what compaction leaves of a batch.

A compacted batch has the records that are still the last of their key, and keeps its place in the log.
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

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from logbus_broker.protocol.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    CRC_START,
    DELETE_HORIZON_BIT,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    crc32c,
    read_header,
    write_header,
)
from logbus_broker.protocol.compression import NONE, compress
from logbus_broker.protocol.records import (
    RecordHeaders,
    read_keys,
    record_bytes,
    record_heads,
    timestamp_of,
    wrapped,
    write_varint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """One message before it has an offset."""

    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: RecordHeaders = ()


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    codec: int = NONE,
    attributes: int = 0,
) -> bytearray:
    """One valid batch of one or more records; `attributes` adds bits to the codec's."""
    records = list(records)
    base_timestamp = records[0].timestamp
    payload = compress(codec, _encode_records(records, base_timestamp))
    header = BatchHeader(
        base_offset=base_offset,
        length=BATCH_HEADER_BYTES - LENGTH_END + len(payload),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec | attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    batch = bytearray(BATCH_HEADER_BYTES) + payload
    seal(batch, header)
    return batch


def seal(batch: bytearray | memoryview, header: BatchHeader) -> BatchHeader:
    """Overwrite the batch's header with `header` and the matching checksum; returns the header as written."""
    write_header(batch, header)
    sealed = header._replace(crc=crc32c(memoryview(batch)[CRC_START:]))
    write_header(batch, sealed)
    return sealed


def _encode_records(records: list[NewRecord], base_timestamp: int) -> bytearray:
    encoded = bytearray()
    for offset_delta, record in enumerate(records):
        body = _encode_record(record, record.timestamp - base_timestamp, offset_delta)
        write_varint(encoded, len(body))
        encoded += body
    return encoded


def _encode_record(record: NewRecord, timestamp_delta: int, offset_delta: int) -> bytearray:
    body = bytearray(1)  # attributes, unused
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    return body


def _write_bytes(body: bytearray, value: bytes | None) -> None:
    write_varint(body, -1 if value is None else len(value))
    body += value or b""


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
        timestamp = timestamp_of(header, timestamp_delta)
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
