"""Searches by time."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.errors import CorruptMessage
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.records import build_batch

from tests.support.batches import NOW_MS, altered, plain_batch, records_at, with_deltas
from tests.support.logs import append, flush, open_log


def search(log: PartitionLog, timestamp: int, *, upto_offset: int | None = None) -> tuple[int, int] | None:
    return log.search_by_time(timestamp, upto_offset=log.end_offset if upto_offset is None else upto_offset).run()


def test_an_overstated_largest_timestamp_sends_the_search_on(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, altered(build_batch(records_at([10, 20])), max_timestamp=1_000))
    append(log, build_batch(records_at([30])))
    assert search(log, 25) == (2, 30)


def test_a_batch_stamped_at_append_is_found_by_its_first_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, altered(build_batch(records_at([10, 20])), attributes=0x08, max_timestamp=70))
    assert search(log, 60) == (0, 70)


def test_nothing_before_the_logs_start_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, build_batch(records_at([10, 11, 12])))
    flush(log)
    log.delete_before(2)
    assert search(log, 0) == (2, 12)


def test_that_all_is_older_is_known_without_a_search(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100)
    for timestamp in (10, 50, 20):
        append(log, build_batch(records_at([timestamp])))
    flush(log)
    assert [log.search_by_time(stamp, upto_offset=3).is_behind_all for stamp in (10, 50, 51)] == [False, False, True]


def test_a_search_begun_before_retention_goes_on_behind_what_was_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=100, retention_bytes=0)
    append(log, plain_batch(timestamp=10))
    append(log, plain_batch(timestamp=20))
    flush(log)
    begun = log.search_by_time(0, upto_offset=2)
    assert apply_retention(log, 0) == 1
    for path in log.take_removed_paths():
        path.unlink()
    assert begun.run() in ((0, 10), (1, 20)), "the open file's record, or the next one: never an error"
    assert search(log, 0) == (1, 20)


def test_a_batch_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    batch = build_batch(records_at([10] * 50), codec=1)
    batch[61] ^= 0xFF
    log = open_log(tmp_path)
    append(log, plain_batch(timestamp=1), altered(batch))
    with pytest.raises(CorruptMessage, match=r"the batch at offset 1 in .* cannot be read"):
        search(log, 5)


def test_the_largest_timestamp_is_found_exactly_although_a_client_overstated_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    append(log, build_batch(records_at([10, 40, 20])))
    append(log, altered(build_batch(records_at([10, 20])), max_timestamp=1_000))
    append(log, build_batch(records_at([40, 30])))
    flush(log)
    assert log.search_by_time(-3, upto_offset=log.end_offset).run_for_max() == (1, 40)
    log.delete_before(2)
    assert log.search_by_time(-3, upto_offset=log.end_offset).run_for_max() == (5, 40)
    assert log.search_by_time(-3, upto_offset=5).run_for_max() == (2, 20)


def test_timestamps_and_offsets_that_leave_64_bits_are_found_as_clients_read_them_or_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, with_deltas(0, timestamp_delta=(1 << 63) - 1, max_timestamp=(1 << 63) - 1))
    append(log, plain_batch(timestamp=NOW_MS))
    assert log.search_by_time(NOW_MS, upto_offset=2).run() == (1, NOW_MS)
    append(log, with_deltas(1 << 62, max_timestamp=NOW_MS + 5))
    with pytest.raises(CorruptMessage, match="offset 2 in .* cannot be read: offset 4611686018427387904 after -1"):
        log.search_by_time(NOW_MS + 1, upto_offset=3).run()
    with pytest.raises(CorruptMessage, match="offset 2 in .* cannot be read"):
        log.search_by_time(0, upto_offset=3).run_for_max()
