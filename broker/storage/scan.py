"""Walks the batches of a segment file from header to header: to rebuild indexes, find a damaged tail, or restore producer
states.

Small batches are read many at a time; of batches larger than a chunk only the headers are read. A walk ends at `end`, or at the
first position that cannot be a batch, and its caller compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.records.batch import BATCH_HEADER_BYTES, CRC_START, LENGTH_END, MAGIC, BatchHeader, read_header
from broker.records.crc import crc32c
from broker.storage.filesystem import FileSystem, OpenFile

CHUNK_BYTES = 64 * 1024  # holds a few batches of the usual 16 KiB; larger chunks were no faster
CHECKSUM_CHUNK_BYTES = 1 << 20  # a torn header may claim 2 GiB: never read more than this at once

PlacedHeader = tuple[int, BatchHeader]


def is_plausible(header: BatchHeader, available: int) -> bool:
    """Whether this can be a stored batch within the next `available` bytes, not zeros or garbage."""
    return (
        header.magic == MAGIC
        and BATCH_HEADER_BYTES - LENGTH_END <= header.length <= available - LENGTH_END
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
    )


def scan_headers(filesystem: FileSystem, file: OpenFile, start: int, end: int) -> Iterator[PlacedHeader]:
    """Position and header of each batch from `start`, which must be a batch boundary."""
    position, chunk_start, chunk = start, start, b""
    while end - position >= BATCH_HEADER_BYTES:
        place = position - chunk_start
        if place + BATCH_HEADER_BYTES > len(chunk):
            chunk_start, place = position, 0
            chunk = filesystem.read_at(file, min(CHUNK_BYTES, end - position), position)
            if len(chunk) < BATCH_HEADER_BYTES:
                return
        header = read_header(chunk, place)
        if not is_plausible(header, end - position):
            return
        yield position, header
        position += header.length + LENGTH_END


def checksum_matches(filesystem: FileSystem, file: OpenFile, position: int, header: BatchHeader) -> bool:
    """Whether the stored batch at `position` is undamaged."""
    checksum, place, end = 0, position + CRC_START, position + header.size
    while place < end:
        data = filesystem.read_at(file, min(CHECKSUM_CHUNK_BYTES, end - place), place)
        if not data:
            return False
        checksum = crc32c(data, checksum)
        place += len(data)
    return checksum == header.crc
