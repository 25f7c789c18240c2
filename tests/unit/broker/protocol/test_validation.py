""" """

from __future__ import annotations

import pytest
from crc32c import crc32c
from logbus_broker.errors import (
    BrokerError,
    CorruptMessage,
    InspectionTooLong,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    ReplicationRefused,
    RequestError,
    UnsupportedCompressionType,
)
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, CRC_START, LENGTH_END, ZSTD, read_header
from logbus_broker.protocol.records import NewRecord, build_batch, check_keys, read_keys, read_records, read_timestamps
from logbus_broker.protocol.validation import (
    INSPECTED_BYTES_MAX,
    INSPECTED_BYTES_PER_REQUEST_MAX,
    INSPECTED_RECORDS_MAX,
    INSPECTED_RECORDS_PER_REQUEST_MAX,
    Inspection,
    NewBatch,
    require_keys,
    split_replicated,
    validate_new_batch,
)

from tests.support.batches import NOW_MS, altered, plain_batch, produced, records_at, stamped, validated, with_deltas


def check(batch: bytearray | bytes | None, **settings: int) -> NewBatch:
    settings = {"message_bytes_max": 1 << 20, "now_ms": NOW_MS, **settings}
    return validate_new_batch(None if batch is None else memoryview(batch), **settings)


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        (None, InvalidRecord, "no records"),
        (b"", InvalidRecord, "no records"),
        (plain_batch()[:60], InvalidRecord, "less than a record batch's header"),
        (plain_batch()[:-1], InvalidRecord, "cut short"),
        (plain_batch() + plain_batch(), InvalidRecord, "exactly one record batch"),
        (plain_batch() + b"x", InvalidRecord, "exactly one record batch"),
        (altered(plain_batch(), magic=1), InvalidRecord, "version 1"),
        (altered(plain_batch(), magic=0), InvalidRecord, "version 0"),
        (altered(plain_batch(), length=48), InvalidRecord, "less than its header"),
        (altered(plain_batch(), length=-1), InvalidRecord, "less than its header"),
        (altered(plain_batch(), length=1 << 30), InvalidRecord, "cut short"),
        (altered(plain_batch(2), record_count=3), InvalidRecord, "3 records with a last offset delta of 1"),
        (altered(plain_batch(2), last_offset_delta=2), InvalidRecord, "last offset delta of 2"),
        (altered(plain_batch(), record_count=0, last_offset_delta=-1), InvalidRecord, "0 records"),
        (altered(plain_batch(), record_count=-5, last_offset_delta=-6), InvalidRecord, "-5 records"),
        (altered(plain_batch(), record_count=1000, last_offset_delta=999), InvalidRecord, "do not fit"),
        (altered(plain_batch(), attributes=0x20), InvalidRecord, "control"),
        (altered(plain_batch(), attributes=0x10), InvalidRecord, "transactions"),
        (altered(plain_batch(), base_offset=7), InvalidRecord, "base offset 7"),
        (altered(produced(5, 0), base_sequence=-1), InvalidRecord, "sequence -1"),
        (altered(produced(5, 0), producer_epoch=-1), InvalidRecord, "epoch -1"),
        (altered(plain_batch(), attributes=0x05), UnsupportedCompressionType, "codec 5"),
        (altered(plain_batch(), attributes=0x07), UnsupportedCompressionType, "codec 7"),
        (altered(plain_batch(), attributes=0x08), InvalidTimestamp, "time of append"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(batch: bytes | None, error: type[BrokerError], text: str) -> None:
    with pytest.raises(error, match=text):
        check(batch)


def test_every_flipped_bit_of_the_checksum_and_behind_it_is_found() -> None:
    good = plain_batch(2)
    for position in range(CRC_START - 4, len(good)):
        for bit in range(8):
            batch = bytearray(good)
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptMessage, match="checksum"):
                check(batch)


def test_a_batch_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    batch = plain_batch()
    assert check(batch, message_bytes_max=len(batch))
    with pytest.raises(MessageTooLarge, match=f"{len(batch)} bytes is larger than max.message.bytes={len(batch) - 1}"):
        check(batch, message_bytes_max=len(batch) - 1)


def test_size_is_checked_before_the_checksum_and_magic_before_the_size() -> None:
    batch = plain_batch()
    batch[-1] ^= 1
    with pytest.raises(MessageTooLarge):
        check(batch, message_bytes_max=10)
    batch[16] = 1
    with pytest.raises(InvalidRecord):
        check(batch, message_bytes_max=10)


def test_a_timestamp_is_allowed_up_to_the_limit_ahead() -> None:
    assert check(plain_batch(timestamp=NOW_MS + 1000), timestamp_after_ms_max=1000)
    with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms=1000"):
        check(plain_batch(timestamp=NOW_MS + 1001), timestamp_after_ms_max=1000)


def test_the_largest_timestamp_of_the_batch_counts() -> None:
    batch = build_batch(records_at([NOW_MS, NOW_MS + 5_000, NOW_MS]))
    with pytest.raises(InvalidTimestamp):
        check(batch, timestamp_after_ms_max=1000)


def test_any_past_is_allowed_unless_limited() -> None:
    assert check(plain_batch(timestamp=0))
    with pytest.raises(InvalidTimestamp, match="before"):
        check(plain_batch(timestamp=NOW_MS - 1001), timestamp_before_ms_max=1000)


def test_records_without_timestamps_are_allowed() -> None:
    batch = build_batch([NewRecord(value=b"a"), NewRecord(value=b"b")])
    assert check(batch, timestamp_before_ms_max=1000).header.max_timestamp == -1


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("unset", [-1, 0])
def test_an_unset_largest_timestamp_is_computed_from_the_records(codec: int, unset: int) -> None:
    batch = altered(build_batch(records_at([100, 900, 300]), codec=codec), max_timestamp=unset)
    header = check(batch).header
    assert header.max_timestamp == 900
    assert header == read_header(batch)
    assert check(batch).header == header, "the checksum was computed again"
    assert [record.timestamp for record in read_records(batch)] == [100, 900, 300]


def test_an_unset_largest_timestamp_over_unreadable_records_is_refused() -> None:
    batch = altered(plain_batch(3, codec=1), max_timestamp=-1)
    batch[61] ^= 0xFF
    batch = altered(batch)
    with pytest.raises(CorruptMessage, match="gzip"):
        check(batch)


def test_a_computed_largest_timestamp_is_held_to_the_limit() -> None:
    batch = altered(build_batch(records_at([NOW_MS, NOW_MS + 5000])), max_timestamp=-1)
    with pytest.raises(InvalidTimestamp):
        check(batch, timestamp_after_ms_max=1000)


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize(
    "payload", [b"", b"garbage that no codec wrote", b"\0" * 40, b"\xff" * 40], ids=["empty", "text", "zeros", "ones"]
)
def test_records_that_are_no_stream_of_their_codec_are_refused(codec: int, payload: bytes) -> None:
    header = read_header(plain_batch(codec=codec))
    batch = plain_batch()[:61] + payload
    with pytest.raises(CorruptMessage, match="stream"):
        check(altered(batch, attributes=header.attributes, length=len(batch) - 12))


def test_more_records_than_any_stream_may_hold_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="decompressed"):
        check(altered(plain_batch(2, codec=4), record_count=1 << 30, last_offset_delta=(1 << 30) - 1))


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_bomb_is_not_inflated_for_a_timestamp(codec: int) -> None:
    """The loop decompresses a batch only if its largest timestamp is missing, and then only up to a limit."""
    bomb = build_batch([NewRecord(timestamp=NOW_MS, value=bytes(1 << 20))] * 20, codec=codec)
    assert check(bomb, message_bytes_max=8 << 20).header.record_count == 20
    with pytest.raises(CorruptMessage, match="within"):
        check(altered(bomb, max_timestamp=-1), message_bytes_max=8 << 20)
    many = plain_batch(INSPECTED_RECORDS_MAX + 1, codec=codec)
    with pytest.raises(InvalidTimestamp, match="largest timestamp"):
        check(altered(many, max_timestamp=-1))


def test_a_batch_is_stamped_at_append_with_a_checksum_that_matches_whatever_its_producer_said() -> None:
    raw = build_batch([NewRecord(timestamp=4_102_444_800_000 + n, value=b"v") for n in range(3)], codec=1)
    batch = validate_new_batch(memoryview(raw), message_bytes_max=1 << 20, now_ms=NOW_MS, stamps_at_append=True)
    header = read_header(raw)
    assert (header, header.timestamp_type_is_append, header.max_timestamp) == (batch.header, True, NOW_MS)
    assert crc32c(memoryview(raw)[CRC_START:]) == header.crc
    assert [record.timestamp for record in read_records(raw)] == [NOW_MS] * 3


def test_the_horizon_of_tombstones_is_compactions_alone() -> None:
    with pytest.raises(InvalidRecord, match="horizon"):
        validated(altered(plain_batch(), attributes=0x40))


INT64_MAX = (1 << 63) - 1


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (with_deltas(0, 0), "offset that follows"),
        (with_deltas(1, 0), "offset that follows"),
        (with_deltas(0, 2), "offset that follows"),
        (with_deltas(0, -1), "offset that follows"),
        (with_deltas(*range(1, 130)), "offset that follows"),
        (with_deltas(0, 1 << 40), "offset that follows"),
        (with_deltas(0, timestamp_delta=INT64_MAX), "64 bits"),
        (with_deltas(0, timestamp_delta=-INT64_MAX, base_timestamp=-10, max_timestamp=NOW_MS), "64 bits"),
        (with_deltas(0, timestamp_delta=1, base_timestamp=INT64_MAX, max_timestamp=INT64_MAX), "64 bits"),
        (altered(with_deltas(0, 1), record_count=1, last_offset_delta=0), "bytes after the last"),
        (
            altered(build_batch([NewRecord(key=b"k", value=b"v" * 30)]), record_count=3, last_offset_delta=2),
            "ends inside a number",
        ),
        (altered(build_batch([NewRecord(timestamp=NOW_MS, value=b"v")])), "without a key"),
    ],
)
def test_what_compaction_could_not_work_with_is_refused_on_a_compacted_topic(batch: bytearray, text: str) -> None:
    new = validate_new_batch(memoryview(batch), message_bytes_max=1 << 20, now_ms=NOW_MS, timestamp_after_ms_max=INT64_MAX)
    with pytest.raises(InvalidRecord, match=text):
        require_keys(new)


@pytest.mark.parametrize("codec", range(5))
def test_what_any_client_sends_passes_on_a_compacted_topic(codec: int) -> None:
    rows = [NewRecord(timestamp=NOW_MS + n * 7, key=b"k" * n, value=b"v" * n * 3) for n in range(300)]
    require_keys(check(build_batch(rows, codec=codec)))
    require_keys(check(build_batch([NewRecord(key=b"", value=None)], codec=codec)))
    require_keys(check(with_deltas(0, timestamp_delta=-NOW_MS - 1)))


def test_a_batch_of_more_records_than_the_loop_may_look_at_is_refused_on_a_compacted_topic() -> None:
    batch = check(plain_batch(INSPECTED_RECORDS_MAX + 1, codec=4))
    with pytest.raises(InvalidRecord, match=f"a compacted topic takes {INSPECTED_RECORDS_MAX}"):
        require_keys(batch)


def test_a_truncated_record_at_any_place_is_refused_by_name() -> None:
    whole = with_deltas(0, 1, 2, timestamp_delta=1 << 20)
    for size in range(BATCH_HEADER_BYTES, len(whole)):
        batch = altered(whole[:size], length=size - LENGTH_END)
        with pytest.raises(InvalidRecord):
            check_keys(bytes(batch[BATCH_HEADER_BYTES:]), read_header(batch))
        with pytest.raises(InvalidRecord):
            list(read_timestamps(batch))
        with pytest.raises(InvalidRecord):
            list(read_keys(bytes(batch[BATCH_HEADER_BYTES:]), read_header(batch)))


def test_a_compacted_topic_refuses_a_batch_that_grows_too_large_for_good() -> None:
    """After CORRUPT_MESSAGE the producer would retry, in vain."""
    rows = [NewRecord(timestamp=NOW_MS, key=b"k", value=bytes(INSPECTED_BYTES_MAX))]
    batch = validate_new_batch(memoryview(build_batch(rows, codec=ZSTD)), message_bytes_max=1 << 20, now_ms=NOW_MS)
    with pytest.raises(InvalidRecord, match="a compacted topic takes batches of"):
        require_keys(batch)


def admitted(batch: bytearray, inspection: Inspection, *, keyed: bool) -> int:
    """How many times a request may have this batch read for its keys, or for its largest timestamp."""
    for count in range(1_000):
        try:
            new = validate_new_batch(
                memoryview(bytearray(batch)), message_bytes_max=1 << 23, now_ms=NOW_MS, inspection=inspection
            )
            if keyed:
                require_keys(new, inspection)
        except InspectionTooLong:
            return count
        except RequestError:
            pass
    raise AssertionError("without end")


@pytest.mark.parametrize("keyed", [True, False])
def test_the_batches_of_a_request_are_read_within_one_limit(keyed: bool) -> None:
    rows = [NewRecord(timestamp=NOW_MS, key=b"k", value=b"")] * 1_000
    batch = build_batch(rows, codec=ZSTD) if keyed else altered(build_batch(rows, codec=ZSTD), max_timestamp=-1)
    assert admitted(batch, Inspection(), keyed=keyed) == INSPECTED_RECORDS_PER_REQUEST_MAX // 1_000
    large = [NewRecord(timestamp=NOW_MS, key=b"k", value=bytes(INSPECTED_BYTES_MAX // 2))]
    batch = build_batch(large, codec=ZSTD) if keyed else altered(build_batch(large, codec=ZSTD), max_timestamp=-1)
    assert admitted(batch, Inspection(), keyed=keyed) == 2 * INSPECTED_BYTES_PER_REQUEST_MAX // INSPECTED_BYTES_MAX


@pytest.mark.parametrize("keyed", [True, False])
def test_batches_that_cannot_be_read_count_too(keyed: bool) -> None:
    """Finding out takes as long as reading them would."""
    bomb = build_batch([NewRecord(timestamp=NOW_MS, key=b"k", value=bytes(INSPECTED_BYTES_MAX))], codec=ZSTD)
    batch = bomb if keyed else altered(bomb, max_timestamp=-1)
    assert admitted(batch, Inspection(), keyed=keyed) == INSPECTED_BYTES_PER_REQUEST_MAX // INSPECTED_BYTES_MAX


def test_a_batch_that_is_not_read_costs_its_request_nothing() -> None:
    inspection = Inspection()
    validate_new_batch(
        memoryview(plain_batch(1_000, codec=ZSTD)), message_bytes_max=1 << 20, now_ms=NOW_MS, inspection=inspection
    )
    assert (inspection.record_count, inspection.byte_count) == (0, 0)


def sent(*places: tuple[int, int], count: int = 5) -> bytearray:
    """Batches with these offsets and leader epochs, as a leader's answer contains them."""
    data = bytearray()
    for base_offset, epoch in places:
        view, _ = stamped(plain_batch(count), base_offset, epoch)
        data += view
    return data


def refused(data: bytearray, *, expected_offset: int = 0, current_epoch: int = 3, last_epoch: int = 0) -> str:
    with pytest.raises(ReplicationRefused) as failure:
        split_replicated(memoryview(data), expected_offset, current_epoch, last_epoch)
    return str(failure.value)


def test_every_batch_is_found_in_order() -> None:
    headers = split_replicated(memoryview(sent((0, 1), (5, 1), (10, 3))), 0, 3, 1)
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 1), (5, 1), (10, 3)]


def test_a_gap_that_compaction_left_is_taken() -> None:
    assert [header.base_offset for header in split_replicated(memoryview(sent((7, 0), (20, 0))), 5, 0)] == [7, 20]


def test_a_batch_that_is_cut_short_by_the_size_of_the_answer_is_left_out() -> None:
    data = sent((0, 0), (5, 0))
    whole = read_header(data).size
    for size in range(whole, len(data)):
        headers = split_replicated(memoryview(data)[:size], 0, 0)
        assert [header.base_offset for header in headers] == [0]


def test_an_answer_without_a_whole_batch_is_refused() -> None:
    data = sent((0, 0))
    for size in (0, 1, BATCH_HEADER_BYTES, len(data) - 1):
        assert "no whole batch" in refused(data[:size])


def test_a_batch_that_begins_before_the_logs_end_is_refused() -> None:
    assert "offset 5 does not follow the end at 6" in refused(sent((5, 0)), expected_offset=6)
    assert "offset 3 does not follow the end at 5" in refused(sent((0, 0), (3, 0)))


def test_a_leader_epoch_that_falls_or_is_newer_than_the_replica_asked_in_is_refused() -> None:
    assert "leader epoch 1, which is not within 2 to 3" in refused(sent((0, 1)), last_epoch=2)
    assert "leader epoch 1, which is not within 2 to 3" in refused(sent((0, 2), (5, 1)))
    assert "leader epoch 4, which is not within 0 to 3" in refused(sent((0, 4)))


def test_any_damaged_byte_behind_the_checksum_is_found() -> None:
    data = sent((0, 0))
    for position in range(BATCH_HEADER_BYTES, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert "checksum" in refused(damaged)


@pytest.mark.parametrize(
    "bytes_at", [(16, b"\x01"), (8, b"\x00\x00\x00\x30"), (8, b"\xff\xff\xff\xff"), (23, b"\xff\xff\xff\xff")]
)
def test_what_cannot_be_a_batch_is_refused(bytes_at: tuple[int, bytes]) -> None:
    position, piece = bytes_at
    data = sent((0, 0))
    data[position : position + len(piece)] = piece
    assert "no batch at byte 0" in refused(data)
