from __future__ import annotations

import pytest
from crc32c import crc32c
from logbus_broker.protocol.batch import CRC_START, BatchHeader, read_header, stamp, write_header

from tests.support.batches import plain_batch


def test_a_header_written_is_the_header_read() -> None:
    header = BatchHeader(2**40, 1000, 7, 2, 0xDEADBEEF, 0x1C, 41, -1, 2**50, 2**33, 12, 2**31 - 1, 42)
    buffer = bytearray(100)
    write_header(buffer, header, 9)
    assert read_header(buffer, 9) == header


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (0x00, (0, False, False, False)),
        (0x04, (4, False, False, False)),
        (0x08, (0, True, False, False)),
        (0x10, (0, False, True, False)),
        (0x20, (0, False, False, True)),
        (0x3B, (3, True, True, True)),
    ],
)
def test_each_attribute_bit_has_its_meaning(attributes: int, expected: tuple[int, bool, bool, bool]) -> None:
    header = read_header(plain_batch())._replace(attributes=attributes)
    assert (header.compression, header.timestamp_type_is_append, header.is_transactional, header.is_control) == expected


def test_stamping_changes_two_fields_and_keeps_the_checksum_valid() -> None:
    batch = plain_batch(3)
    before = read_header(batch)
    stamp(memoryview(batch), 12345, 6)
    after = read_header(batch)
    assert after == before._replace(base_offset=12345, leader_epoch=6) == before.stamped(12345, 6)
    assert crc32c(batch[CRC_START:]) == after.crc
