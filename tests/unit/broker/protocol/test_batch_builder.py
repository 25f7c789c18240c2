from __future__ import annotations

import pytest
from logbus_broker.errors import InvalidRecord
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import (
    IsNewest,
    NewRecord,
    build_batch,
    compact_batch,
    read_keys,
    read_records,
    read_timestamps,
    record_bytes,
)

from tests.support.batches import NOW_MS, altered, validated, with_deltas

DAY_MS = 86_400_000


def batch_of(*records: tuple[bytes, bytes | None], codec: int = 0, **fields: int) -> bytes:
    rows = [
        NewRecord(timestamp=NOW_MS + number, key=key, value=value, headers=(("h", b"x"),))
        for number, (key, value) in enumerate(records)
    ]
    return bytes(build_batch(rows, base_offset=100, codec=codec, **fields))


def compacted(batch: bytes, is_newest: IsNewest, *, now_ms: int = NOW_MS, header_needed: bool = False) -> bytes:
    return compact_batch(batch, is_newest=is_newest, now_ms=now_ms, delete_retention_ms=DAY_MS, header_needed=header_needed)


def only(*offsets: int) -> IsNewest:
    return lambda key, offset: offset in offsets


@pytest.mark.parametrize("codec", range(5))
def test_what_is_left_keeps_offsets_timestamps_headers_and_the_batchs_place(codec: int) -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec, producer_id=7, producer_epoch=1, base_sequence=40)
    left = compacted(batch, only(101))
    header, before = read_header(left), read_header(batch)
    assert [*read_records(left)] == [[*read_records(batch)][1]]
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 102, 1)
    assert header[9:12] == before[9:12], "the producer's fields"
    assert (header.compression, header.max_timestamp) == (codec, NOW_MS + 1)
    validated(bytearray(rebased(left)))  # checksum, length and counts are valid


def rebased(batch: bytes) -> bytes:
    """The batch as a producer would send it, which is what validation accepts."""
    header = read_header(batch)
    records = [NewRecord(timestamp=r.timestamp, key=r.key, value=r.value) for r in read_records(batch)]
    assert header.size == len(batch)
    return bytes(build_batch(records, codec=header.compression))


def test_a_batch_of_which_everything_stays_is_the_same_bytes() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"))
    assert compacted(batch, only(100, 101)) is batch


def test_a_batch_of_which_nothing_stays_vanishes_or_leaves_its_header() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"), codec=4, producer_id=7, producer_epoch=1, base_sequence=40)
    assert compacted(batch, only()) == b""
    empty = compacted(batch, only(), header_needed=True)
    header = read_header(empty)
    assert (len(empty), header.size, header.record_count, header.compression) == (61, 61, 0, 0)
    assert (header.base_offset, header.last_offset, header.producer_id, header.base_sequence) == (100, 101, 7, 40)
    assert [*read_records(empty)] == []
    assert compacted(empty, only(), header_needed=True) == empty
    assert compacted(empty, only()) == b""


@pytest.mark.parametrize("codec", range(5))
def test_a_tombstone_gets_a_horizon_and_goes_when_it_is_over(codec: int) -> None:
    batch = batch_of((b"a", b"1"), (b"b", None), codec=codec)
    first = compacted(batch, only(100, 101))
    assert read_header(first).delete_horizon_ms == NOW_MS + DAY_MS
    assert [*read_records(first)] == [*read_records(batch)], "timestamps stay what they were"
    assert compacted(first, only(100, 101), now_ms=NOW_MS + DAY_MS - 1) == first
    later = compacted(first, only(100, 101), now_ms=NOW_MS + DAY_MS)
    assert [record.key for record in read_records(later)] == [b"a"]
    assert [record.timestamp for record in read_records(later)] == [NOW_MS]


def test_a_record_without_a_key_has_none_that_could_be_asked_for() -> None:
    batch = bytes(build_batch([NewRecord(timestamp=1, value=b"v"), NewRecord(timestamp=2, key=b"", value=None)]))
    header = read_header(batch)
    keys = read_keys(record_bytes(header, batch), header)
    assert [(record.key, record.is_tombstone) for record in keys] == [(None, False), (b"", True)]


@pytest.mark.parametrize("base", [-(1 << 63), (1 << 63) - 1])
def test_timestamps_that_leave_64_bits_wrap_as_they_do_for_every_client(base: int) -> None:
    """A producer may write any delta, and may have done so before the topic was compacted."""
    rows = [NewRecord(timestamp=NOW_MS, key=b"a"), NewRecord(timestamp=NOW_MS + 500, key=b"b", value=b"v")]
    batch = bytes(altered(build_batch(rows), base_timestamp=base))
    stamps = [record.timestamp for record in read_records(batch)]
    assert all(-(1 << 63) <= stamp < 1 << 63 for stamp in stamps)
    left = compacted(batch, lambda key, offset: True)
    assert read_header(left).delete_horizon_ms == NOW_MS + DAY_MS
    assert [record.timestamp for record in read_records(left)] == stamps
    assert [stamp for _, stamp in read_timestamps(left)] == stamps


def test_tombstones_that_may_never_go_get_the_last_horizon_there_is() -> None:
    batch = batch_of((b"a", None))
    left = compact_batch(
        batch, is_newest=lambda key, offset: True, now_ms=NOW_MS, delete_retention_ms=(1 << 63) - 1, header_needed=False
    )
    assert read_header(left).delete_horizon_ms == (1 << 63) - 1
    assert [*read_records(left)] == [*read_records(batch)]


def test_what_compaction_does_not_need_is_copied_as_it_is() -> None:
    """A header whose name is not UTF-8 is left to the consumers."""
    batch = altered(bytearray(batch_of((b"a", None), (b"b", b"1")).replace(b"\x02h\x02x", b"\x02\xff\x02x")))
    left = compacted(bytes(batch), only(100))
    assert read_header(left).record_count == 1
    assert b"\xff\x02x" in left


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (-1, 0), (0, 1 << 40)])
def test_offsets_that_are_not_the_batchs_own_cannot_be_compacted(deltas: tuple[int, int]) -> None:
    batch = with_deltas(*deltas)
    with pytest.raises(InvalidRecord, match="offset"):
        compacted(bytes(batch), only(100))
