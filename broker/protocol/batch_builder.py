"""Builds v2 batches: for the broker's own internal records, and for tests that need any batch a client could send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.protocol.batch import (
    BATCH_HEADER_BYTES,
    CRC_START,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    crc32c,
    write_header,
)
from broker.protocol.compression import NONE, compress
from broker.protocol.records import RecordHeaders, write_varint


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
