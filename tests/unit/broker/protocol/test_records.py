from __future__ import annotations

from datetime import UTC, datetime

import pytest
from logbus_broker.errors import InvalidRecord
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, read_header
from logbus_broker.protocol.records import NewRecord, build_batch, read_records

from tests.support.batches import altered, records_at


def test_a_batch_stamped_at_append_gives_its_time_to_every_record() -> None:
    batch = altered(build_batch(records_at([5, 6])), attributes=0x08, max_timestamp=99)
    assert [record.timestamp for record in read_records(batch)] == [99, 99]


def test_another_implementation_reads_the_same_records() -> None:
    readers = pytest.importorskip("kio.records.readers")
    records = [
        NewRecord(timestamp=1_700_000_000_000 + i * 1000, key=b"k%d" % i, value=b"v" * i, headers=(("h", b"1"),))
        for i in range(20)
    ]
    batch = build_batch(records, base_offset=7, leader_epoch=3, producer_id=9, producer_epoch=1, base_sequence=77)
    theirs, size = readers.read_batch(bytes(batch), 0)
    header = read_header(batch)
    assert size == len(batch) == header.size
    assert (theirs.base_offset, theirs.crc, theirs.base_sequence, theirs.max_timestamp) == (
        7,
        header.crc,
        77,
        header.max_timestamp,
    )
    assert [(r.offset, r.key, r.value, r.timestamp) for r in theirs.records] == [
        (r.offset, r.key, r.value, datetime.fromtimestamp(r.timestamp / 1000, UTC)) for r in read_records(batch)
    ]


def test_a_batch_written_by_another_implementation_is_read() -> None:
    kafka_records = pytest.importorskip("kafka.record.default_records")
    builder = kafka_records.DefaultRecordBatchBuilder(
        magic=2, compression_type=1, is_transactional=0, producer_id=4, producer_epoch=2, base_sequence=10, batch_size=1 << 20
    )
    for i in range(50):
        builder.append(i, 1_000 + i * 7, b"key", b"value %d" % i, [("h", b"x")])
    batch = bytes(builder.build())
    assert read_header(batch).record_count == 50
    assert [(r.offset, r.timestamp, r.value) for r in read_records(batch)] == [
        (i, 1_000 + i * 7, b"value %d" % i) for i in range(50)
    ]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "ends inside a number"),
        (b"\x80", "ends inside a number"),
        (b"\xff" * 10, "longer than 64 bits"),
        (b"\x01", "a record of -1 bytes"),
        (b"\x7e\x00", "a record of 63 bytes"),
        (b"\x0c\x00\x00\x00\x7e\x00\x00", "a field of 63 bytes"),
        (b"\x0c\x00\x00\x00\x03\x00\x00", "a field of -2 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x7e", "a record of 63 headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "a record of -1 headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "header without a name"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", "not UTF-8"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "does not fill its length"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes after the last"),
    ],
)
def test_records_that_contradict_themselves_are_refused(payload: bytes, text: str) -> None:
    empty = build_batch(records_at([0]))[:BATCH_HEADER_BYTES]
    batch = altered(empty + payload, length=BATCH_HEADER_BYTES - 12 + len(payload))
    with pytest.raises(InvalidRecord, match=text):
        list(read_records(batch))
