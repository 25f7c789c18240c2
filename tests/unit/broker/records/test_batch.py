from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest
from crc32c import crc32c

from broker.records.batch import BATCH_HEADER_BYTES, CRC_START, BatchHeader, read_header, stamp, write_header
from tests.support.batches import plain_batch


def test_a_header_written_is_the_header_read() -> None:
    header = BatchHeader(2**40, 1000, 7, 2, 0xDEADBEEF, 0x1C, 41, -1, 2**50, 2**33, 12, 2**31 - 1, 42)
    buffer = bytearray(100)
    write_header(buffer, header, 9)
    assert read_header(buffer, 9) == header


def test_the_offsets_of_a_header_follow_from_its_base_and_delta() -> None:
    header = read_header(plain_batch(5))._replace(base_offset=100)
    assert (header.last_offset, header.next_offset) == (104, 105)
    assert header.size == len(plain_batch(5))


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


def test_a_header_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        read_header(plain_batch()).base_offset = 1  # type: ignore[misc]


def test_fields_agree_with_another_implementation() -> None:
    schema = pytest.importorskip("kio.records.schema")
    theirs = {field.name for field in dataclasses.fields(schema.RecordBatch)} | {"magic"}
    renamed = {"length": "batch_length", "leader_epoch": "partition_leader_epoch", "record_count": "records"}
    assert {renamed.get(name, name) for name in get_type_hints(BatchHeader)} == theirs
    assert BATCH_HEADER_BYTES == 61
