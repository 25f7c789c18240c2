"""The 61-byte header of a v2 record batch, the unit in which records are sent, stored and sent again unchanged.

Layout (big-endian): base offset 8, length 4 (of all that follows), leader epoch 4, magic 1, CRC-32C 4, attributes 2, last
offset delta 4, base and largest timestamp 8 + 8, producer id 8, producer epoch 2, base sequence 4, record count 4; then the
records. The checksum covers everything from the attributes on, so the two fields that the broker sets, base offset and leader
epoch, are patched in place without recomputing it.

Hot path: one header is read per batch produced. A NamedTuple is built in 0.3 us; a frozen dataclass of 13 fields takes 2 us. It
is created with `tuple.__new__`, which `_make` also ends in, after two more Python calls.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from logbus_broker.compiled_module import load_compiled

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
