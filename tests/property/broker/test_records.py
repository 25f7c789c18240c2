"""Whatever is built is read back; any bytes that arrive are either a valid batch or refused with a named error."""

from __future__ import annotations

import contextlib
import struct

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.errors import RequestError
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, read_header
from logbus_broker.protocol.records import (
    NewRecord,
    build_batch,
    read_keys,
    read_records,
    read_timestamps,
    read_varint,
    record_bytes,
    write_varint,
)
from logbus_broker.protocol.validation import require_keys, validate_new_batch

from tests.support.batches import NOW_MS, altered

INT64 = st.integers(-(2**63), 2**63 - 1)
NULLABLE = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=10), NULLABLE), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(NewRecord, timestamp=st.integers(-1, NOW_MS), key=NULLABLE, value=NULLABLE, headers=HEADERS), min_size=1, max_size=8
)
CODECS = st.integers(0, 4)


@given(INT64)
def test_a_number_comes_back_as_it_was_written(value: int) -> None:
    buffer = bytearray(b"\x00")
    write_varint(buffer, value)
    assert read_varint(buffer, 1) == (value, len(buffer))


@given(RECORDS, CODECS, st.integers(0, 2**62))
def test_records_come_back_as_they_were_built(records: list[NewRecord], codec: int, base_offset: int) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    read = list(read_records(batch))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in read] == [(r.timestamp, r.key, r.value, r.headers) for r in records]
    assert [record.offset for record in read] == list(range(base_offset, base_offset + len(records)))
    assert list(read_timestamps(batch)) == [(record.offset, record.timestamp) for record in read]
    header = read_header(batch)
    assert [tuple(keyed) for keyed in read_keys(record_bytes(header, batch), header)] == [
        (record.offset, record.key, record.value is None) for record in read
    ]


@given(RECORDS, CODECS)
def test_what_is_built_is_valid(records: list[NewRecord], codec: int) -> None:
    batch = build_batch(records, codec=codec)
    before = bytes(batch)
    checked = validate_new_batch(memoryview(batch), message_bytes_max=1 << 20, now_ms=NOW_MS)
    assert checked.header.record_count == len(records)
    assert checked.header.max_timestamp == max(record.timestamp for record in records)
    assert bytes(batch) == before


@given(RECORDS, CODECS, st.data())
def test_damaged_bytes_are_refused_by_name(records: list[NewRecord], codec: int, data: st.DataObject) -> None:
    """The checksum is recomputed, so that the checks after it see the damage too."""
    batch = build_batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch = batch[: data.draw(st.integers(0, len(batch)))] if data.draw(st.booleans()) else batch
    if len(batch) >= BATCH_HEADER_BYTES:
        batch = altered(batch)
    refused, read = "", 0
    with contextlib.suppress(RequestError):
        require_keys(validate_new_batch(memoryview(batch), message_bytes_max=1 << 20, now_ms=NOW_MS))
    try:
        checked = validate_new_batch(memoryview(batch), message_bytes_max=1 << 20, now_ms=NOW_MS)
        read = len(list(read_records(checked.view)))
    except RequestError as error:
        refused = str(error)
    assert refused or read == checked.header.record_count


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_by_name(data: bytes) -> None:
    frame = bytearray(struct.pack(">qiib", 0, len(data) + 49, 0, 2) + bytes(44) + data)
    try:
        validate_new_batch(memoryview(altered(frame)), message_bytes_max=1 << 20, now_ms=NOW_MS)
        refused = ""
    except RequestError as error:
        refused = str(error)
    assert "0 records" in refused
