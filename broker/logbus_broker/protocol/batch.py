"""The 61-byte header of a v2 record batch, the unit in which records are sent, stored and sent again unchanged; and the codecs of
its records, bounded: a batch of 1 MB may claim to hold gigabytes, so output beyond a limit is an error.

Layout (big-endian): base offset 8, length 4 (of all that follows), leader epoch 4, magic 1, CRC-32C 4, attributes 2, last
offset delta 4, base and largest timestamp 8 + 8, producer id 8, producer epoch 2, base sequence 4, record count 4; then the
records. The checksum covers everything from the attributes on, so the two fields that the broker sets, base offset and leader
epoch, are patched in place without recomputing it.

Hot path: one header is read per batch produced. A NamedTuple is built in 0.3 us; a frozen dataclass of 13 fields takes 2 us. It
is created with `tuple.__new__`, which `_make` also ends in, after two more Python calls.

What is decompressed is written into one anonymous mapping of the limit's size: the kernel allocates its pages only as they are
touched, so a large limit costs nothing for a small batch (a bytearray would be cleared first, 15 ms for 64 MiB). While it handles
a request, the loop calls this only with a much smaller limit (`validation.py`): the client decides how long decompression takes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import cramjam

from logbus_broker.compiled_module import load_compiled
from logbus_broker.errors import CorruptMessage, UnsupportedCompressionType

BATCH_HEADER_BYTES = 61
LENGTH_END = 12  # the length field counts what follows it
CRC_START = 21  # the first byte that the checksum covers
MAGIC = 2

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_EPOCH = -1  # leader epoch of a log without batches

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # set by compaction: the base timestamp is when the batch's tombstones may be removed (KIP-534)

Buffer = bytes | bytearray | memoryview

BATCH_HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_LEADER_EPOCH_POSITION = 12


class BatchHeader(NamedTuple):
    """The fields of a batch header; nothing is checked yet."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where the batch after this one begins."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones in this batch may be removed; None if compaction has not seen them yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def timestamp_type_is_append(self) -> bool:
        """Whether the timestamp of every record is the broker's time of append, which is `max_timestamp`."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    def stamped(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """This header after `stamp` with the same arguments."""
        return tuple.__new__(BatchHeader, (base_offset, self[1], leader_epoch, *self[3:]))


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error if fewer than BATCH_HEADER_BYTES bytes remain."""
    return tuple.__new__(BatchHeader, BATCH_HEADER.unpack_from(buffer, position))


def write_header(buffer: bytearray | memoryview, header: BatchHeader, position: int = 0) -> None:
    """The inverse of `read_header`."""
    BATCH_HEADER.pack_into(buffer, position, *header)


def stamp(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields that the broker sets into the batch at the buffer's start."""
    _BASE_OFFSET.pack_into(buffer, 0, base_offset)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_POSITION, leader_epoch)


crc32c: Callable[..., int] = load_compiled("crc32c", "_crc32c").crc32c
"""The checksum of data, continuing from a previous checksum if one is given."""


# The codecs of a batch's records, bounded: a batch of 1 MB may claim to hold gigabytes, so output beyond a limit is an
# error.


NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MAX = ZSTD
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# 64 MiB: sixty times the default max.message.bytes. Log text compresses to a tenth or less; a factor of a thousand is an attack.
DECOMPRESSED_BYTES_MAX = 64 << 20

# Java's snappy library frames its blocks: this magic, two version numbers, then blocks that are each preceded by their length.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = Struct(">I")

_DecompressInto = Callable[[Any, Any], int]


def _xerial_into(data: memoryview, output: memoryview) -> int:
    position, written = _XERIAL_HEADER_BYTES, 0
    while position < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        block = data[position : position + length]
        if len(block) < length:
            raise ValueError("a snappy block is cut short")
        if cramjam.snappy.decompress_raw_len(block) > len(output) - written:
            raise ValueError("failed to write whole buffer")
        written += cramjam.snappy.decompress_raw_into(block, output[written:])
        position += length
    return written


def _snappy_into(data: memoryview, output: memoryview) -> int:
    if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
        return _xerial_into(data, output)
    return int(cramjam.snappy.decompress_raw_into(data, output))


_DECOMPRESS_INTO: dict[int, _DecompressInto] = {
    GZIP: cramjam.gzip.decompress_into,
    SNAPPY: _snappy_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def _lz4(data: bytes) -> Any:
    """Independent blocks: Kafka's Java clients reject a stream whose blocks refer to previous ones."""
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return compressor.finish()


_COMPRESS: dict[int, Callable[[Any], Any]] = {
    GZIP: cramjam.gzip.compress,
    SNAPPY: cramjam.snappy.compress_raw,
    LZ4: _lz4,
    ZSTD: cramjam.zstd.compress,
}


# How every stream of a codec begins. Raw snappy has no magic: a length, then a literal, as there is nothing to refer back to yet.
_BEGINNINGS = {GZIP: b"\x1f\x8b\x08", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}


def begins_like(codec: int, data: memoryview) -> bool:
    """Whether `data` begins like a stream of that codec. Cheap, and proves nothing about the rest."""
    if codec != SNAPPY:
        beginning = _BEGINNINGS[codec]
        return data[: len(beginning)] == beginning
    return data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC or _begins_like_raw_snappy(data)


def _begins_like_raw_snappy(data: memoryview) -> bool:
    for position, byte in enumerate(data[:5]):
        if byte < 0x80:
            return data[0] != 0 and position + 1 < len(data) and data[position + 1] & 0x03 == 0
    return False


def decompress(codec: int, data: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> memoryview:
    """The records' bytes as they were before compression; CorruptMessage if they are damaged or exceed `limit_bytes`."""
    if codec == NONE:
        return memoryview(data)
    if codec not in _DECOMPRESS_INTO:
        raise UnsupportedCompressionType(
            f"compression codec {codec} is unknown; known: 0 to {CODEC_MAX} ({', '.join(CODEC_NAMES)})"
        )
    mapping = mmap.mmap(-1, limit_bytes)
    output = memoryview(mapping)
    try:
        written = _DECOMPRESS_INTO[codec](memoryview(data), output)
    except (
        Exception
    ) as error:  # cramjam's error class, struct.error and ValueError: all mean that the peer's bytes are not such a stream
        with contextlib.suppress(BufferError):  # at once: the traceback would keep it alive until the next garbage collection
            output.release()
            mapping.close()
        raise CorruptMessage(f"{CODEC_NAMES[codec]} records cannot be read within {limit_bytes} bytes: {error}") from None
    return output[:written]


def compress(codec: int, data: Buffer) -> bytes:
    """The records' bytes, compressed with a codec; snappy as one raw block."""
    return bytes(data) if codec == NONE else bytes(_COMPRESS[codec](bytes(data)))
