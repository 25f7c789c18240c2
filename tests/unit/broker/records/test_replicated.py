from __future__ import annotations

import pytest

from broker.errors import ReplicationRefused
from broker.records.batch import BATCH_HEADER_BYTES, read_header
from broker.records.replicated import split_replicated
from tests.support.batches import plain_batch, stamped


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
