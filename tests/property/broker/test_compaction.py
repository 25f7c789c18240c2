"""Compaction against a dict: whatever is written, compacted and restarted, every key has its newest value, at its offset."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logbus_broker.log.compaction import OFFSET_MAP_ENTRY_BYTES
from logbus_broker.log.segment import LOG
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.support.batches import NOW_MS
from tests.support.examples import examples
from tests.support.logs import append, compact, files_with, flush, located_bytes, open_log, read_all

SETTINGS = {"cleanup_policy": "compact", "segment_bytes": 500, "min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 1_000}
PAIR = st.tuples(st.integers(0, 6), st.none() | st.binary(max_size=30))
BATCH = st.tuples(st.lists(PAIR, min_size=1, max_size=4), st.integers(0, 4))
ACTION = st.one_of(
    st.lists(BATCH, min_size=1, max_size=4), st.sampled_from(["compact", "little memory", "later", "clean", "crash"])
)


@settings(max_examples=examples(60, at_least=60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTION, min_size=1, max_size=25))
def test_the_newest_value_of_every_key_is_there_at_its_offset(actions: list[object]) -> None:
    with tempfile.TemporaryDirectory(prefix="logbus-") as name:
        directory = Path(name)
        log, model, clean, now_ms = open_log(directory, **SETTINGS), dict[bytes, tuple[int, bytes | None]](), 0, NOW_MS
        for action in actions:
            if isinstance(action, list):
                for pairs, codec in action:
                    rows = [(b"key-%d" % key, value) for key, value in pairs]
                    for number, (key, value) in enumerate(rows):
                        model[key] = (log.end_offset + number, value)
                    append(log, build_batch([NewRecord(timestamp=NOW_MS, key=k, value=v) for k, v in rows], codec=codec))
                flush(log)
            elif action == "later":
                now_ms += 1_000
            elif action in ("clean", "crash"):
                if action == "clean":
                    log.close()
                log = open_log(directory, clean=action == "clean", recovery_point=log.flushed_offset, **SETTINGS)
                assert log.offline_reason == ""
            else:
                clean = compact(log, clean, now_ms=now_ms, map_bytes=600 if action == "little memory" else 1 << 20)
        rows_left = read_all(log)
        newest = {record.key: (record.offset, record.value) for record in rows_left}
        assert {key: place for key, place in newest.items() if place[1] is not None} == {
            key: place for key, place in model.items() if place[1] is not None
        }
        offsets = [record.offset for record in rows_left]
        assert offsets == sorted(set(offsets))
        for asked in range(log.end_offset):
            found = located_bytes(log, asked, 1, upto_offset=log.flushed_offset)
            assert found
        assert [path.name for path in files_with(directory, ".cleaned") + files_with(directory, ".swap")] == []
        assert files_with(directory, LOG)


PUT = st.tuples(st.integers(0, 3), st.none() | st.just(b"value"))
PASS = st.tuples(st.sampled_from([1, 1, 2, 1_000]), st.sampled_from([0, 1_000]))  # keys in the map, milliseconds before it
ROUND = st.tuples(st.lists(PUT, max_size=8), st.lists(PASS, max_size=3))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROUND, min_size=1, max_size=5), st.sampled_from([500, 100_000]))
def test_no_deleted_key_comes_back_however_little_of_the_log_a_pass_can_map(
    rounds: list[tuple[list[tuple[int, bytes | None]], list[tuple[int, int]]]], segment_bytes: int
) -> None:
    """Each round seals a segment, then a few passes go over the log, with maps that fill up partway and pauses in between."""
    with tempfile.TemporaryDirectory(prefix="logbus-") as name:
        log = open_log(Path(name), **{**SETTINGS, "segment_bytes": segment_bytes})
        model, clean, now_ms = dict[bytes, bytes | None](), 0, NOW_MS
        for puts, passes in rounds:
            for key, value in puts:
                model[b"key-%d" % key] = value
                append(log, build_batch([NewRecord(timestamp=NOW_MS, key=b"key-%d" % key, value=value)]))
            if log.segments.active.size:
                log.roll()
            flush(log)
            for keys, pause_ms in passes:
                now_ms += pause_ms
                clean = compact(log, clean, now_ms=now_ms, map_bytes=keys * OFFSET_MAP_ENTRY_BYTES)
                read = {record.key: record.value for record in read_all(log)}
                assert {key: value for key, value in read.items() if value is not None} == {
                    key: value for key, value in model.items() if value is not None
                }
