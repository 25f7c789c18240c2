from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.log.compaction import OFFSET_MAP_ENTRY_BYTES, Exchange
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.segment_list import WARM_SEGMENTS_MAX
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.sim.disk import SimDisk, Stopped
from tests.support.batches import NOW_MS, with_deltas
from tests.support.logs import (
    append,
    compact,
    crash_copy,
    files_with,
    flush,
    headers_from,
    located_bytes,
    open_log,
    open_segments,
    pass_over,
    read_all,
)

DAY_MS = 86_400_000
SETTINGS: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 400, "min_cleanable_dirty_ratio": 0.0}


def put(log: PartitionLog, *pairs: tuple[bytes, bytes | None], timestamp: int = NOW_MS, **fields: int) -> None:
    append(log, build_batch([NewRecord(timestamp=timestamp, key=key, value=value) for key, value in pairs], **fields))
    flush(log)


def content(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_all(log)]


def filled(directory: Path, count: int = 60, keys: int = 5, **config: Any) -> PartitionLog:
    log = open_log(directory, **{**SETTINGS, **config})
    for number in range(count):
        put(log, (b"key-%d" % (number % keys), b"value-%d" % number))
    return log


def test_the_active_segment_is_never_touched(tmp_path: Path) -> None:
    log = filled(tmp_path, segment_bytes=1 << 20)
    assert pass_over(log) is None
    assert len(content(log)) == 60


def test_every_offset_is_served_across_the_gaps(tmp_path: Path) -> None:
    log = filled(tmp_path)
    compact(log)
    offsets = [offset for offset, _, _ in content(log)]
    for requested in range(60):
        data = located_bytes(log, requested, 1, upto_offset=60)
        assert int.from_bytes(data[:8], "big") <= min(offset for offset in offsets if offset >= requested)
        assert data, "a consumer never stands still before the end"
    assert located_bytes(log, 60, 1, upto_offset=60) == b""


def test_a_reader_of_a_range_never_stands_still_in_a_gap_before_its_end(tmp_path: Path) -> None:
    log = filled(tmp_path)
    compact(log)
    offsets = [offset for offset, _, _ in content(log)]
    assert len(offsets) < 50
    for end in range(1, 60):
        upto_offset, position = log.segments.batch_end(end - 1)
        assert end <= upto_offset <= min(offset for offset in offsets if offset >= end - 1) + 1
        for requested in range(end):
            piece = log.locate(requested, 1 << 20, upto_offset=upto_offset, upto_position=position)
            assert piece.length > 0, (requested, end)
            piece.release()


def test_small_segments_are_put_together(tmp_path: Path) -> None:
    log = filled(tmp_path, count=200)
    clean = compact(log)
    many = len(files_with(tmp_path, ".log"))
    put(log, *[(b"key-%d" % n, b"x" * 50) for n in range(5)])
    put(log, *[(b"key-%d" % n, b"x" * 50) for n in range(5)])
    compact(log, clean)
    assert len(files_with(tmp_path, ".log")) < many
    assert log.segments.first.base_offset == 0


def test_a_tombstone_stays_for_its_time_and_the_value_before_it_goes_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, **SETTINGS, delete_retention_ms=DAY_MS)
    put(log, (b"gone", b"v" * 200))
    put(log, (b"gone", None), (b"kept", b"v" * 200))
    put(log, (b"new", b"v" * 300))
    clean = compact(log)
    assert [(offset, key, value is None) for offset, key, value in content(log)][:2] == [(1, b"gone", True), (2, b"kept", False)]
    put(log, (b"other", b"v" * 300))
    put(log, (b"other", b"v" * 300))
    compact(log, clean, now_ms=NOW_MS + DAY_MS)
    assert b"gone" not in [key for _, key, _ in content(log)]


def test_a_map_that_is_full_ends_the_pass_early_and_the_next_goes_on(tmp_path: Path) -> None:
    log = filled(tmp_path, count=100, keys=100)
    first = compact(log, map_bytes=10 * OFFSET_MAP_ENTRY_BYTES)
    assert first == 10
    assert len(content(log)) == 100, "records behind the map stay, whatever their keys"
    assert compact(log, first, map_bytes=10 * OFFSET_MAP_ENTRY_BYTES) == 20


def test_a_batch_that_cannot_be_compacted_is_named_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = filled(tmp_path, count=20)
    append(log, with_deltas(0, 0))
    log.roll()
    flush(log)
    files = {path.name: path.read_bytes() for path in files_with(tmp_path, ".log")}
    with pytest.raises(StorageError, match="the batch at offset 20: offset 0 after 0 in a batch that ends at 1"):
        compact(log)
    assert {path.name: path.read_bytes() for path in files_with(tmp_path, ".log")} == files


def test_timestamps_that_leave_64_bits_do_not_end_a_pass(tmp_path: Path) -> None:
    log = filled(tmp_path, count=20)
    overflowing = with_deltas(0, timestamp_delta=(1 << 63) - 1)
    append(log, overflowing)
    put(log, (b"gone", None), timestamp=-(1 << 63))
    log.roll()
    flush(log)
    assert compact(log) == 22
    assert [offset for offset, _, _ in content(log)][-2:] == [20, 21]


@pytest.mark.parametrize("map_bytes", [1 << 20, 10 * OFFSET_MAP_ENTRY_BYTES])
def test_a_pass_leaves_no_segment_open_that_nobody_reads(tmp_path: Path, map_bytes: int) -> None:
    log = filled(tmp_path, count=200, keys=200)
    segments = len(files_with(tmp_path, ".log"))
    for offset in range(0, 200, 3):
        located_bytes(log, offset, 1, upto_offset=200)
    compact(log, map_bytes=map_bytes)
    assert segments > 3 * WARM_SEGMENTS_MAX
    assert len(open_segments(tmp_path)) <= WARM_SEGMENTS_MAX + 1
    for segment in log.segments:
        assert segment.end_offset is None or segment.is_warm or not segment.has_index_loaded
    for offset in range(200):
        assert located_bytes(log, offset, 1, upto_offset=200)
    assert len(open_segments(tmp_path)) <= WARM_SEGMENTS_MAX + 1


def test_the_last_batch_of_a_live_producer_keeps_its_header(tmp_path: Path) -> None:
    log = open_log(tmp_path, **SETTINGS)
    put(log, (b"k", b"v"), producer_id=9, producer_epoch=0, base_sequence=5)
    for _ in range(10):
        put(log, (b"k", b"v" * 100))
    compact(log, producers=[0])
    header = next(headers_from(log, 0))
    assert (header.producer_id, header.base_sequence, header.record_count, header.last_offset) == (9, 5, 0, 0)


def test_a_log_never_ends_before_it_did_although_nothing_of_its_end_is_left(tmp_path: Path) -> None:
    log = filled(tmp_path, count=30, keys=1)
    sealed = log.segments.active.base_offset
    compact(log)
    assert [header.next_offset for header in headers_from(log, 0)].count(sealed) == 1


def test_records_younger_than_the_smallest_lag_are_left_alone(tmp_path: Path) -> None:
    log = filled(tmp_path, compaction_lag_ms_min=1_000)
    assert pass_over(log, now_ms=NOW_MS + 999) is None
    assert pass_over(log, now_ms=NOW_MS + 1_001) is not None


def test_a_log_is_cleaned_when_enough_of_it_is_dirty_or_something_waited_too_long(tmp_path: Path) -> None:
    log = filled(tmp_path, min_cleanable_dirty_ratio=0.5, compaction_lag_ms_max=10_000)
    late = log.segments.active.base_offset * 3 // 4
    assert pass_over(log, late) is None
    assert pass_over(log, late, now_ms=NOW_MS + 10_001) is not None
    log.is_compacting = False
    assert pass_over(log, 0) is not None


def test_the_active_segment_rolls_when_its_records_waited_too_long_for_compaction(tmp_path: Path) -> None:
    log = open_log(tmp_path, **{**SETTINGS, "segment_bytes": 1 << 20}, compaction_lag_ms_max=10_000)
    put(log, (b"k", b"1"))
    put(log, (b"k", b"2"), timestamp=NOW_MS + 10_001)
    assert len(files_with(tmp_path, ".log")) == 2


def test_retention_waits_for_a_pass_and_a_compacted_topic_has_none_by_time(tmp_path: Path) -> None:
    log = filled(tmp_path, retention_ms=1)
    assert apply_retention(log, NOW_MS + DAY_MS) == 0
    both = filled(tmp_path / "both", retention_ms=1, cleanup_policy="compact,delete")
    assert pass_over(both) is not None
    assert apply_retention(both, NOW_MS + DAY_MS) == 0
    both.is_compacting = False
    assert apply_retention(both, NOW_MS + DAY_MS) > 0


def test_a_slice_that_is_on_its_way_survives_the_exchange(tmp_path: Path) -> None:
    log = filled(tmp_path)
    piece = log.locate(0, 1 << 20, upto_offset=60)
    with open(f"/proc/self/fd/{piece.fileno()}", "rb") as file:
        before = file.read(piece.length)
        compact(log)
        file.seek(0)
        assert file.read(piece.length) == before


@pytest.mark.parametrize("steps", range(0, 14, 2))
def test_a_search_by_time_that_meets_an_exchange_finds_what_there_is_and_fails_nobody(tmp_path: Path, steps: int) -> None:
    log = open_log(tmp_path, **SETTINGS)
    for number in range(60):
        put(log, (b"key-%d" % (number % 7), b"v" * (number % 11)), timestamp=NOW_MS + number)
    searches = [log.search_by_time(NOW_MS + number, upto_offset=60) for number in range(0, 60, 3)]
    work = pass_over(log)
    assert work is not None
    for _, event in zip(range(len(log.segments) * 5 + steps), work.steps(), strict=False):
        if isinstance(event, Exchange):
            log.segments.exchange(event.old, event.new)
        for segment in (*log.segments, *searches[0].segments):
            if segment.end_offset is not None:
                segment.forget()
    expected = [log.search_by_time(NOW_MS + number, upto_offset=60).run() for number in range(0, 60, 3)]
    assert [search.run() for search in searches] == expected
    assert searches[0].run_for_max() == (59, NOW_MS + 59)


def test_a_topic_made_again_during_a_pass_over_the_old_one_keeps_its_files(tmp_path: Path) -> None:
    """The pool thread that rewrites the old topic's segments works in its pinned directory, not by name."""
    stop = 0
    while True:
        directory = tmp_path / str(stop)
        work = pass_over(filled(directory, count=20))
        assert work is not None
        steps = work.steps()
        if stop > len(list(zip(range(stop), steps, strict=False))):
            break
        directory.rename(tmp_path / f"{stop}-delete")
        again = filled(directory, count=12)
        files = {path.name: path.read_bytes() for path in directory.iterdir()}
        with suppress(StorageError):  # segments are read by name, and the new ones do not match
            for _ in steps:
                pass
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == files
        assert len(content(again)) == 12
        stop += 1
    assert stop > 20


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_compacted_log_is_recovered_from_its_beginning_although_it_has_gaps(tmp_path: Path, policy: str) -> None:
    log = filled(tmp_path / "log")
    compact(log)
    copy = crash_copy(tmp_path / "log", tmp_path / "copy", without=[".index", ".timeindex", ".indexnote"])
    again = open_log(copy, **{**SETTINGS, "cleanup_policy": policy})
    assert again.offline_reason == ""
    assert again.recovery.truncated_bytes == 0
    assert content(again) == content(log)


def test_a_sealed_segment_whose_end_was_lost_ends_a_compacted_log_as_well(tmp_path: Path) -> None:
    log = filled(tmp_path)
    sealed = files_with(tmp_path, ".log")[-2]
    with open(sealed, "r+b") as file:
        file.truncate(sealed.stat().st_size - 1)
    again = open_log(tmp_path, **SETTINGS)
    assert again.recovery.removed_segments == 1
    assert again.end_offset < log.segments.active.base_offset
    assert [offset for offset, _, _ in content(again)] == list(range(again.end_offset)), "what is left is a prefix"


def test_a_crash_at_any_point_of_a_pass_leaves_the_newest_record_of_every_key() -> None:
    crashes, is_whole = 0, False
    while not is_whole:
        disk = SimDisk()
        log = filled(disk.root, count=16, keys=3, filesystem=disk)
        newest = {key: (offset, value) for offset, key, value in content(log)}
        disk.calls_left = crashes
        try:
            compact(log, filesystem=disk)
            is_whole = True
        except Stopped:
            pass
        disk.release()
        again = open_log(disk.root, recovery_point=16, filesystem=disk, **SETTINGS)
        assert again.offline_reason == ""
        rows = content(again)
        assert {key: (offset, value) for offset, key, value in rows} == newest
        assert [offset for offset, _, _ in rows] == sorted({offset for offset, _, _ in rows})
        assert again.end_offset == 16
        assert not [name for name in disk.list_names(disk.root) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert all(len(located_bytes(again, offset, 1, upto_offset=16)) for offset in range(16))
        crashes += 1
    assert crashes > 20


def test_a_consumer_is_led_past_segments_of_which_only_an_empty_batch_is_left(tmp_path: Path) -> None:
    """librdkafka takes several answers with nothing but an empty batch for a record that is larger than its fetches."""
    log = filled(tmp_path, count=30, keys=1, segment_bytes=100)  # one segment per record
    compact(log)
    assert [segment.size for segment in log.segments].count(61) > 5
    newest = content(log)[0][0]
    for offset in range(newest):
        data = located_bytes(log, offset, 1 << 20, upto_offset=log.end_offset)
        assert read_header(data).record_count == 1
        assert read_header(data).base_offset == newest
    first_empty = located_bytes(log, 0, 1 << 20, upto_offset=log.segments.first.end_offset or 0)
    assert read_header(first_empty).record_count == 0, "at the end of what is visible it says how far the log is read"
