"""The log against a dict of batches on a disk that loses and tears what was not synced, power cut after power cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logbus_broker.errors import StorageError
from logbus_broker.log.log_retention import apply_retention
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.sim.disk import SimDisk
from tests.support.batches import NOW_MS
from tests.support.examples import examples
from tests.support.logs import append, compact, flush, open_log, read_all

PLAIN = {"segment_bytes": 400, "index_interval_bytes": 100}
COMPACTED = {**PLAIN, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
WRITE = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), min_size=1, max_size=4)
ACTION = st.one_of(WRITE, WRITE, st.sampled_from(["flush", "half a flush", "clean", "power cut", "power cut"]))
often = settings(max_examples=examples(40, at_least=40), deadline=None, suppress_health_check=[HealthCheck.too_slow])

Model = dict[int, tuple[bytes | None, bytes | None]]


def write(log: PartitionLog, rows: list[tuple[int, int]], model: Model) -> None:
    records = [NewRecord(timestamp=NOW_MS, key=b"key-%d" % key, value=b"v" * size) for key, size in rows]
    for number, record in enumerate(records):
        model[log.end_offset + number] = record.key, record.value
    append(log, build_batch(records))


class Machine:
    """A log on such a disk. `model` holds what was written, by offset; nothing below `log.flushed_offset` may ever be lost."""

    def __init__(self, data: st.DataObject, **config: Any) -> None:
        self._data = data
        self._config = config
        self.disk = SimDisk()
        self.model: Model = {}
        self.log = self._open(clean=False, recovery_point=0)

    def _open(self, *, clean: bool, recovery_point: int) -> PartitionLog:
        return open_log(self.disk.root, clean=clean, recovery_point=recovery_point, filesystem=self.disk, **self._config)

    def stop_cleanly(self) -> None:
        self.log.close()
        self.log = self._open(clean=True, recovery_point=self.log.flushed_offset)
        assert self.log.recovery.was_clean

    def cut_power(self) -> None:
        """The checkpoint may hold any flushed offset so far; here the newest or none."""
        flushed, written, epoch = self.log.flushed_offset, self.log.end_offset, self.log.epochs.current
        self.disk.power_cut(lambda low, high: self._data.draw(st.integers(low, high)))
        self.log = self._open(clean=False, recovery_point=self._data.draw(st.sampled_from([0, flushed])))
        assert self.log.offline_reason == ""
        assert flushed <= self.log.end_offset <= written
        assert self.log.epochs.current > epoch or self.log.epochs.current == 0 or self.log.epochs.written.latest < epoch
        self.model = {offset: pair for offset, pair in self.model.items() if offset < self.log.end_offset}

    def fail_a_flush(self) -> None:
        """The disk loses what it was to write; the broker is restarted on the same machine, perhaps twice."""
        ticket = self.log.begin_flush()
        if ticket is None:
            return
        flushed, written = self.log.flushed_offset, self.log.end_offset
        self.disk.failing_syncs = 1
        with pytest.raises(StorageError) as failure:
            ticket.run()
        self.log.fail_flush(ticket, failure.value)
        if self._data.draw(st.booleans()):
            self.disk.failing_syncs = 1
            self.log = self._open(clean=False, recovery_point=flushed)
            assert self.log.offline_reason
        with pytest.raises(StorageError):
            self.log.close()  # no stop is clean after it
        self.log = self._open(clean=False, recovery_point=self._data.draw(st.sampled_from([0, flushed])))
        assert self.log.offline_reason == ""
        assert self.log.flushed_offset == written

    def step(self, action: object) -> None:
        if isinstance(action, list):
            write(self.log, action, self.model)
        elif action == "flush":
            flush(self.log)
        elif action == "half a flush":
            ticket = self.log.begin_flush()
            if ticket is not None:
                ticket.run()
                self.log._flushing = None  # the power fails before the loop learns of the flush: no client has seen the records
        elif action == "failed flush":
            self.fail_a_flush()
        elif action == "clean":
            self.stop_cleanly()
        elif action == "power cut":
            self.cut_power()


@often
@given(st.lists(ACTION, min_size=2, max_size=20), st.data())
def test_what_was_flushed_is_there_and_what_is_there_was_written(actions: list[object], data: st.DataObject) -> None:
    machine = Machine(data, **PLAIN)
    for action in [*actions, "power cut"]:
        machine.step(action)
        assert {r.offset: (r.key, r.value) for r in read_all(machine.log)} == machine.model


@often
@given(st.lists(st.one_of(ACTION, st.just("failed flush")), min_size=2, max_size=20), st.data())
def test_what_was_visible_after_a_failed_flush_and_a_restart_is_there_after_a_power_cut(
    actions: list[object], data: st.DataObject
) -> None:
    machine = Machine(data, **PLAIN)
    for action in [*actions, [(0, 1)], "failed flush", "power cut"]:
        machine.step(action)
        assert {r.offset: (r.key, r.value) for r in read_all(machine.log)} == machine.model


@often
@given(st.lists(st.one_of(ACTION, st.just("compact")), min_size=2, max_size=20), st.data())
def test_compaction_and_power_cuts_leave_the_newest_record_of_each_key(actions: list[object], data: st.DataObject) -> None:
    machine = Machine(data, **COMPACTED)
    for action in [*actions, "compact", "power cut"]:
        if action == "compact":
            compact(machine.log, filesystem=machine.disk)
        machine.step(action)
        left = {r.offset: (r.key, r.value) for r in read_all(machine.log)}
        assert left.items() <= machine.model.items()
        newest = {pair[0]: offset for offset, pair in machine.model.items()}
        assert set(newest.values()) <= left.keys()


@often
@given(st.lists(st.one_of(ACTION, st.just("retention")), min_size=2, max_size=20), st.data())
def test_retention_and_power_cuts_keep_everything_from_the_logs_start_on(actions: list[object], data: st.DataObject) -> None:
    machine = Machine(data, **PLAIN, retention_bytes=500)
    for action in [*actions, "retention", "power cut"]:
        if action == "retention":
            apply_retention(machine.log, NOW_MS)
            for path in machine.log.take_removed_paths():
                machine.disk.remove(path)
        machine.step(action)
        left = {r.offset: (r.key, r.value) for r in read_all(machine.log)}
        start = machine.log.log_start_offset
        assert left == {offset: pair for offset, pair in machine.model.items() if offset >= min(left, default=start)}
        assert all(offset in left for offset in machine.model if offset >= start)
