"""The 61-byte header of a v2 record batch, the unit in which records travel, are stored and are sent again unchanged.

Layout (big-endian): base offset 8, length 4 (of all that follows), leader epoch 4, magic 1, CRC-32C 4, attributes 2, last
offset delta 4, base and largest timestamp 8 + 8, producer id 8, producer epoch 2, base sequence 4, record count 4; then the
records. The checksum covers everything from the attributes on, so the two fields that a broker decides, base offset and leader
epoch, are patched in place without computing it again.

Hot path: one header is read per batch produced. A NamedTuple is built in 0.3 us; a frozen dataclass of 13 fields takes 2 us. Its
class is called by `tuple.__new__`, which is what `_make` ends in, two calls of Python later.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

BATCH_HEADER_BYTES = 61
LENGTH_END = 12  # the length field counts what follows it
CRC_START = 21  # the first byte that the checksum covers
MAGIC = 2

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_EPOCH = -1  # of a leader: no batch, so none

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # set by compaction: the base timestamp says when the batch's tombstones may go (KIP-534)

Buffer = bytes | bytearray | memoryview

_HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_LEADER_EPOCH_POSITION = 12


class BatchHeader(NamedTuple):
    """What a batch says about itself; nothing is checked yet."""

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
        """Bytes of the whole batch."""
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
        """When the tombstones in this batch may go; None: compaction has not met them yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def timestamp_type_is_append(self) -> bool:
        """Whether every record carries the broker's time of append, which is `max_timestamp`."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    def stamped(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """This header after `stamp` with the same arguments."""
        return tuple.__new__(BatchHeader, (base_offset, self[1], leader_epoch, *self[3:]))


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error where fewer than BATCH_HEADER_BYTES bytes remain."""
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))


def write_header(buffer: bytearray | memoryview, header: BatchHeader, position: int = 0) -> None:
    """The inverse of `read_header`."""
    _HEADER.pack_into(buffer, position, *header)


def stamp(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields that a broker decides into the batch at the buffer's start."""
    _BASE_OFFSET.pack_into(buffer, 0, base_offset)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_POSITION, leader_epoch)
