"""The records inside one batch, decompressed. Used to dump, to read our own internal topics, and in tests; the paths of produce
and fetch never read records like this.

A record: length, attributes (one byte, unused), timestamp delta, offset delta, key, value, then headers; every number but the
attributes is a zigzag varint, a length of -1 means null. A peer wrote these bytes, so each length is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.errors import InvalidRecord
from broker.records.batch import BATCH_HEADER_BYTES, BatchHeader, Buffer, read_header
from broker.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from broker.records.varint import read_varint
from broker.records.walk import wrapped

RecordHeaders = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message with its place in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


def read_records(batch: Buffer, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of the batch that fills `batch`; InvalidRecord or CorruptMessage if its content is malformed."""
    header = read_header(batch)
    for position, end, payload in _record_spans(header, batch, limit_bytes):
        yield _read_record(payload, position, end, header)


def _record_spans(header: BatchHeader, batch: Buffer, limit_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
    payload = decompress(header.compression, memoryview(batch)[BATCH_HEADER_BYTES : header.size], limit_bytes)
    position = 0
    for _ in range(header.record_count):
        length, position = read_varint(payload, position)
        end = position + length
        if length < 0 or end > len(payload):
            raise InvalidRecord(f"a record of {length} bytes in {len(payload) - position} bytes")
        yield position, end, payload
        position = end
    if position != len(payload):
        raise InvalidRecord(f"{len(payload) - position} bytes after the last of {header.record_count} records")


def _read_place(payload: memoryview, position: int, header: BatchHeader) -> tuple[int, int, int]:
    timestamp_delta, position = read_varint(payload, position + 1)  # one byte of attributes
    offset_delta, position = read_varint(payload, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise InvalidRecord(f"offset {offset_delta} in a batch that ends at {header.last_offset_delta}")
    timestamp = header.max_timestamp if header.timestamp_type_is_append else wrapped(header.base_timestamp + timestamp_delta)
    return timestamp, header.base_offset + offset_delta, position


def _read_record(payload: memoryview, position: int, end: int, header: BatchHeader) -> Record:
    timestamp, offset, position = _read_place(payload, position, header)
    key, position = _read_bytes(payload, position, end)
    value, position = _read_bytes(payload, position, end)
    headers, position = _read_headers(payload, position, end)
    if position != end:
        raise InvalidRecord(f"the record at offset {offset} does not fill its length")
    return Record(offset=offset, timestamp=timestamp, key=key, value=value, headers=headers)


def _read_headers(payload: memoryview, position: int, end: int) -> tuple[RecordHeaders, int]:
    count, position = read_varint(payload, position)
    if not 0 <= count <= end - position:  # a header takes at least two bytes
        raise InvalidRecord(f"a record of {count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(payload, position, end)
        value, position = _read_bytes(payload, position, end)
        headers.append((_header_name(name), value))
    return tuple(headers), position


def _header_name(name: bytes | None) -> str:
    if name is None:
        raise InvalidRecord("a record header without a name")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise InvalidRecord(f"a record header's name is not UTF-8: {name!r}") from None


def _read_bytes(payload: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(payload, position)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise InvalidRecord(f"a field of {length} bytes in {end - position} bytes")
    return bytes(payload[position : position + length]), position + length
