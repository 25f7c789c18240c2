"""The codecs of a batch's records, bounded: a batch of 1 MB may claim to hold gigabytes, so output beyond a limit is an error.

Output is written into one anonymous mapping of the limit's size: the system lends its pages only as they are touched, so a
large limit costs nothing for a small batch (a bytearray would be cleared first, 15 ms for 64 MiB). Never called by the loop for
a client's batch: decompression takes as long as the client likes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from struct import Struct
from typing import Any

import cramjam

from broker.errors import CorruptMessage, UnsupportedCompressionType
from broker.records.batch import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MAX = ZSTD
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# 64 MiB: sixty times the default max.message.bytes. Log text packs to a tenth or less; what grows a thousandfold is an attack.
DECOMPRESSED_BYTES_MAX = 64 << 20

# Java's snappy library frames its blocks: this magic, two version numbers, then blocks that each have their length before them.
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
    """Independent blocks: Kafka's Java clients refuse a stream whose blocks refer to the ones before."""
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return compressor.finish()


_COMPRESS: dict[int, Callable[[Any], Any]] = {
    GZIP: cramjam.gzip.compress,
    SNAPPY: cramjam.snappy.compress_raw,
    LZ4: _lz4,
    ZSTD: cramjam.zstd.compress,
}


# How every stream of a codec begins. Raw snappy has no such mark: a length, then a literal, as there is nothing to refer to yet.
_BEGINNINGS = {GZIP: b"\x1f\x8b\x08", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}


def begins_like(codec: int, data: memoryview) -> bool:
    """Whether `data` begins as that codec's streams do. Cheap, and proves nothing about the rest."""
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
    """The records' bytes as they were before compression; CorruptMessage where they are damaged or pass `limit_bytes`."""
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
    ) as error:  # cramjam's error class, struct.error and ValueError: all mean that the peer's bytes are no such stream
        with contextlib.suppress(BufferError):  # at once: the error's traceback would keep it until a collection of garbage
            output.release()
            mapping.close()
        raise CorruptMessage(f"{CODEC_NAMES[codec]} records cannot be read within {limit_bytes} bytes: {error}") from None
    return output[:written]


def compress(codec: int, data: Buffer) -> bytes:
    """The records' bytes in a codec's form; snappy as one raw block."""
    return bytes(data) if codec == NONE else bytes(_COMPRESS[codec](bytes(data)))
