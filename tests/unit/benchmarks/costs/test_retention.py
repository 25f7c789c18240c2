"""The logs that retention is measured on, and when they count as deleted."""

from __future__ import annotations

import time

from logbus_broker.clock import SystemClock
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.settings import LogConfig

from benchmarks.costs.retention import DUE, SEGMENTS, due_files, is_gone, write_logs


def test_three_segments_of_five_are_due(tmp_path):
    now_ms = time.time_ns() // 1_000_000
    write_logs(tmp_path, 2, now_ms=now_ms)
    log = PartitionLog.open(
        tmp_path / "old-1", config=LogConfig(), filesystem=FileSystem(), clock=SystemClock(), clean=True, recovery_point=SEGMENTS
    )
    assert len(log.segments) == SEGMENTS
    assert apply_retention(log, now_ms) == DUE
    assert log.log_start_offset == DUE


def test_a_segment_is_gone_when_its_renamed_file_is(tmp_path):
    file = due_files(tmp_path, 1)[0]
    file.parent.mkdir()
    assert is_gone(file)
    renamed = file.with_name(file.name + ".deleted")
    renamed.touch()
    assert not is_gone(file)
