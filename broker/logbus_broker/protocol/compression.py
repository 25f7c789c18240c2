"""The codecs of a batch's records, bounded: a batch of 1 MB may claim to hold gigabytes, so output beyond a limit is an error.

Output is written into one anonymous mapping of the limit's size: the kernel allocates its pages only as they are touched, so a
large limit costs nothing for a small batch (a bytearray would be cleared first, 15 ms for 64 MiB). While it handles a request,
the loop calls this only with a much smaller limit (`validation.py`): the client decides how long decompression takes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from struct import Struct
from typing import Any

import cramjam

from logbus_broker.errors import CorruptMessage, UnsupportedCompressionType
from logbus_broker.protocol.batch import Buffer

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
