"""Prints the content of a partition's file, line by line as Apache Kafka's DumpLogSegments does, so that both can be compared.

A segment is printed up to the first position without a batch; checksums are verified, records are read only on request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.errors import CorruptMessage, InvalidRecord
from broker.partitions.producer_memory import decode_producers
from broker.partitions.producer_state import SEQUENCE_MASK
from broker.records.batch import NO_SEQUENCE, BatchHeader
from broker.records.compression import CODEC_NAMES
from broker.records.reader import Record, read_records
from broker.storage import offset_index, time_index
from broker.storage.filesystem import FileSystem
from broker.storage.scan import checksum_matches, scan_headers
from broker.storage.segment import INDEX, LOG, TIME_INDEX
from broker.storage.snapshots import SNAPSHOT


def dump_file(path: Path, filesystem: FileSystem, *, records: bool) -> Iterator[str]:
    """The lines for one file; ValueError if its name is not that of a partition's file."""
    try:
        dump = _DUMPS[path.suffix]
        base_offset = int(path.name.split(".")[0])
    except (KeyError, ValueError):
        raise ValueError(f"{path.name} is none of {', '.join(sorted(_DUMPS))} with an offset for its name") from None
    yield f"Dumping {path}"
    yield from dump(path, filesystem, base_offset, records)


def _dump_log(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    yield f"Log starting offset: {base_offset}"
    file = filesystem.open_for_reading(path)
    size = filesystem.size(file)
    end = 0
    for position, header in scan_headers(filesystem, file, 0, size):
        is_valid = checksum_matches(filesystem, file, position, header)
        yield _batch_line(header, position, is_valid=is_valid)
        if records:
            yield from _record_lines(filesystem.read_at(file, header.size, position), header)
        end = position + header.size
    if end < size:
        yield f"Found {size - end} invalid bytes at the end of {path.name}"


def _batch_line(header: BatchHeader, position: int, *, is_valid: bool) -> str:
    last_sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
    horizon = "OptionalLong.empty" if header.delete_horizon_ms is None else f"OptionalLong[{header.delete_horizon_ms}]"
    codec = CODEC_NAMES[header.compression] if header.compression < len(CODEC_NAMES) else header.compression
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count}"
        f" baseSequence: {header.base_sequence} lastSequence: {last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.leader_epoch}"
        f" isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} deleteHorizonMs: {horizon}"
        f" position: {position} {_timestamp_type(header)}: {header.max_timestamp} size: {header.size} magic: {header.magic}"
        f" compresscodec: {codec} crc: {header.crc} isvalid: {_java(is_valid)}"
    )


def _record_lines(batch: bytes, header: BatchHeader) -> Iterator[str]:
    try:
        for record in read_records(batch):
            yield _record_line(record, header)
    except (InvalidRecord, CorruptMessage) as error:
        yield f"| cannot be read: {error}"


def _record_line(record: Record, header: BatchHeader) -> str:
    sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        sequence = (header.base_sequence + record.offset - header.base_offset) & SEQUENCE_MASK
    line = (
        f"| offset: {record.offset} {_timestamp_type(header)}: {record.timestamp}"
        f" keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        f" sequence: {sequence} headerKeys: [{','.join(_shown(name) for name, _ in record.headers)}]"
    )
    key = "" if record.key is None else f" key: {_shown(record.key.decode(errors='replace'))}"
    value = "" if record.value is None else f" payload: {_shown(record.value.decode(errors='replace'))}"
    return line + key + value


def _dump_index(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    entries = _entries(path, filesystem, offset_index.ENTRY)
    if not entries:
        yield f"{path} is empty."
    for relative_offset, position in entries:
        yield f"offset: {base_offset + relative_offset} position: {position}"


def _dump_time_index(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    for timestamp, relative_offset in _entries(path, filesystem, time_index.ENTRY):
        yield f"timestamp: {timestamp} offset: {base_offset + relative_offset}"


def _entries(path: Path, filesystem: FileSystem, entry: struct.Struct) -> list[tuple[int, ...]]:
    data = filesystem.read_bytes(path)
    return list(entry.iter_unpack(memoryview(data)[: len(data) // entry.size * entry.size]))


def _dump_snapshot(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    producers = decode_producers(filesystem.read_bytes(path))
    if producers is None:
        yield f"{path.name} is damaged: the next start reads the log instead"
    for producer_id, state in (producers or {}).items():
        batches = ", ".join(f"{b.base_sequence}-{b.last_sequence} at {b.base_offset}" for b in state.batches)
        yield f"producerId: {producer_id} producerEpoch: {state.epoch} batches: {batches}"


_DUMPS: dict[str, Callable[[Path, FileSystem, int, bool], Iterator[str]]] = {
    LOG: _dump_log,
    INDEX: _dump_index,
    TIME_INDEX: _dump_time_index,
    SNAPSHOT: _dump_snapshot,
}


def _java(value: bool) -> str:
    return "true" if value else "false"


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type_is_append else "CreateTime"


def _size(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _shown(text: str) -> str:
    """The text on one line, whatever a producer wrote: without anything that moves a terminal's cursor."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
