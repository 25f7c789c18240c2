"""Compaction as the broker drives it: through the engine, slice by slice, in parallel to produce and fetch."""

from __future__ import annotations

import gc
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.background_tasks import SLICE_SECONDS
from logbus_broker.log.cleaner import ENDED, REST_SECONDS_MAX, REST_SECONDS_MIN, LogCleaner, run_slice
from logbus_broker.log.leader_epochs import TruncationTicket
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.records import NewRecord, Record, build_batch, read_records

from tests.support.admin import SET, TOPIC, alter
from tests.support.batches import with_deltas
from tests.support.engine import Harness, produced
from tests.support.flaky_disk import FlakyDisk
from tests.support.logs import crash_copy

BACKOFF_MS = 15_000
# so that only the cleaner uses the disk
QUIET: dict[str, Any] = {"checkpoint_interval_ms": 1 << 40, "retention_check_interval_ms": 1 << 40}


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: int = 0) -> bytearray:
    return build_batch([NewRecord(timestamp=1_700_000_000_000, key=key, value=value) for key, value in pairs], codec=codec)


def produce(broker: Harness, raw: bytearray, topic: str = "t") -> int:
    """The error code."""
    pending = broker.produce(raw, topic)
    broker.settle()
    return int(produced(pending).error_code)


def records(broker: Harness, topic: str = "t") -> list[Record]:
    log = broker.engine.partitions.get(topic, 0).log
    return [record for raw in log.batches_from(0) for record in read_records(raw)]


def passes(caplog: pytest.LogCaptureFixture) -> int:
    """How many passes have come to their ends."""
    return sum("compacted up to" in message for message in caplog.messages)


def clean(broker: Harness) -> None:
    """Let the backoff pass; a slice runs to its end, since the clock stands still meanwhile."""
    broker.flush()
    broker.settle(after_ms=BACKOFF_MS)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", cleanup_policy="compact", segment_bytes="1000")
    return harness


def fill(broker: Harness, count: int = 50) -> None:
    for number in range(count):
        assert produce(broker, keyed((b"key-%d" % (number % 4), b"value-%d" % number))) == 0
        broker.flush()


def test_a_compacted_topic_keeps_the_last_record_of_each_key(broker: Harness) -> None:
    fill(broker)
    before = records(broker)
    clean(broker)
    after = records(broker)
    assert len(after) < len(before) // 2
    assert {r.key: r for r in after} == {r.key: r for r in before}
    assert broker.engine.partitions.get("t", 0).end_offset == 50


def test_a_restart_remembers_how_far_the_log_is_clean(broker: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker.cleaner")
    fill(broker)
    clean(broker)
    count = passes(caplog)
    assert count
    expected = records(broker)
    broker.close()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text().startswith("0\n1\nt 0 ")
    again = Harness(tmp_path)
    clean(again)
    assert passes(caplog) == count
    assert records(again) == expected


def test_a_topic_that_is_deleted_meanwhile_ends_its_pass(broker: Harness) -> None:
    fill(broker)
    broker.clock.advance_ms(BACKOFF_MS)
    broker.engine.end_turn()
    assert broker.thread_pool.jobs
    assert broker.delete("t").error_code == 0
    broker.settle()
    broker.create("t", cleanup_policy="compact", segment_bytes="1000")
    fill(broker)
    clean(broker)
    assert len(records(broker)) < 50


def test_a_stop_in_the_middle_of_a_pass_is_a_clean_stop(broker: Harness, tmp_path: Path) -> None:
    fill(broker)
    expected = {r.key: r for r in records(broker)}
    broker.clock.advance_ms(BACKOFF_MS)
    broker.engine.end_turn()
    assert broker.thread_pool.jobs
    broker.close()
    again = Harness(tmp_path)
    assert again.engine.partitions.get("t", 0).log.recovery.was_clean
    assert {r.key: r for r in records(again)} == expected


@pytest.mark.parametrize("codec", range(5))
def test_a_record_without_a_key_is_refused_on_a_compacted_topic_only(broker: Harness, codec: int) -> None:
    broker.create("plain")
    assert produce(broker, keyed((b"k", b"v"), (None, b"v"), codec=codec)) == 87
    assert produce(broker, keyed((b"k", b"v"), (b"", None), codec=codec)) == 0
    assert produce(broker, keyed((None, b"v"), codec=codec), topic="plain") == 0


def rest(broker: Harness, seconds: float) -> None:
    broker.settle(after_ms=int(seconds * 1000))


def test_whatever_the_disk_refuses_once_a_pass_is_tried_again_and_the_broker_goes_on(tmp_path: Path) -> None:
    """Each file system call of a pass fails once: nothing is lost, the next pass does what is left, and a restart finds no
    leftover file."""
    first = Harness(tmp_path / "original")
    first.create("t", cleanup_policy="compact", segment_bytes="400", min_cleanable_dirty_ratio="0.01")
    fill(first, 12)  # less than the backoff, so the pass is still to come
    expected = {r.key: r for r in records(first)}
    first.close()
    calls = 0
    while True:
        directory = crash_copy(tmp_path / "original", tmp_path / str(calls))
        disk = FlakyDisk()
        broker = Harness(directory, filesystem=disk, **QUIET)
        disk.fail_after(calls)
        clean(broker)
        if not disk.has_failed:
            break
        rest(broker, REST_SECONDS_MIN)
        rest(broker, BACKOFF_MS / 1000)
        broker.engine._checkpoint()  # retries writing how far the log is compacted
        broker.settle()
        assert broker.engine.health.troubles == {}
        assert {r.key: r for r in records(broker)} == expected
        assert len(records(broker)) < 10
        broker.crash()
        again = Harness(directory)
        assert again.engine.partitions.get("t", 0).log.offline_reason == ""
        assert {r.key: r for r in records(again)} == expected
        assert again.engine.partitions.get("t", 0).end_offset == 12
        again.crash()
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(3))
def test_a_defect_in_what_a_slice_brought_back_keeps_nothing_from_being_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, number: int, defects: list[str]
) -> None:
    broker = Harness(tmp_path, **QUIET)
    broker.create("t", cleanup_policy="compact", segment_bytes="400", min_cleanable_dirty_ratio="0.01")
    fill(broker, 12)
    expected = {r.key: r for r in records(broker)}
    real, calls = LogCleaner._slice_ended, count()

    def sabotaged(self: LogCleaner, *arguments: Any) -> None:
        is_now = next(calls) == number
        if is_now and when == "before":
            raise RuntimeError("a defect")
        real(self, *arguments)
        if is_now:
            raise RuntimeError("a defect")

    monkeypatch.setattr(LogCleaner, "_slice_ended", sabotaged)
    clean(broker)
    assert len(defects) == 1, "and it is told"
    assert len(list(tmp_path.glob("t-0/*.swap"))) == (broker.engine.partitions.get("t", 0).log.unfinished_exchange is not None)
    rest(broker, REST_SECONDS_MIN + BACKOFF_MS / 1000)
    rest(broker, BACKOFF_MS / 1000)
    assert (broker.engine.health.troubles, len(defects)) == ({}, 1)
    defects.clear()
    assert len(records(broker)) < 10
    broker.crash()
    again = Harness(tmp_path)
    assert {r.key: r for r in records(again)} == expected
    assert again.engine.partitions.get("t", 0).end_offset == 12


def test_a_pass_that_fails_is_tried_again_ever_more_rarely_and_told_once(
    broker: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("turned", segment_bytes="200")
    assert produce(broker, with_deltas(0, 0), topic="turned") == 0
    broker.flush()
    assert produce(broker, keyed((b"k", b"v" * 200)), topic="turned") == 0
    broker.flush()
    alter(broker, TOPIC, "turned", ("cleanup.policy", SET, "compact"))
    clean(broker)
    assert list(broker.engine.health.troubles) == ["compaction of turned-0"]
    assert "the batch at offset 0: offset 0 after 0" in broker.engine.health.troubles["compaction of turned-0"]
    attempts = []
    for _ in range(10):
        attempts.append(round(broker.engine._cleaner._rests[broker.engine.partitions.get("turned", 0)].seconds))
        rest(broker, attempts[-1] + BACKOFF_MS / 1000)
    assert attempts[:7] == [60, 120, 240, 480, 960, 1920, 3600]
    assert set(attempts[7:]) == {REST_SECONDS_MAX}
    assert len([record for record in caplog.records if "compaction of turned-0" in record.getMessage()]) == 1
    fill(broker)
    clean(broker)
    assert len(records(broker)) < 25, "the others are compacted"
    alter(broker, TOPIC, "turned", ("cleanup.policy", SET, "delete"))
    clean(broker)
    assert broker.engine.health.troubles == {}


def test_a_partition_that_rests_is_let_go_when_it_is_deleted(tmp_path: Path) -> None:
    disk = FlakyDisk()
    broker = Harness(tmp_path, filesystem=disk, **QUIET)
    broker.create("t", cleanup_policy="compact", segment_bytes="1000")
    fill(broker)
    broker.flush()
    partition = weakref.ref(broker.engine.partitions.get("t", 0))
    disk.fail_after(0)
    clean(broker)
    assert list(broker.engine.health.troubles) == ["compaction of t-0"]
    broker.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["t"], timeout_ms=1000)
    clean(broker)
    assert broker.engine.health.troubles == {}
    gc.collect()
    assert partition() is None


def test_what_cannot_be_looked_at_before_a_pass_is_a_trouble_of_its_partition(tmp_path: Path) -> None:
    class Unreadable(FileSystem):
        is_armed = False

        def read_bytes(self, path: Path) -> bytes:
            if self.is_armed and path.suffix == ".indexnote":
                raise PermissionError(13, "Permission denied", str(path))
            return super().read_bytes(path)

    broker = Harness(tmp_path)
    broker.create("t", cleanup_policy="compact", segment_bytes="1000", min_compaction_lag_ms="1")
    fill(broker)
    broker.close()
    disk = Unreadable()
    again = Harness(tmp_path, filesystem=disk)
    disk.is_armed = True
    clean(again)
    assert "Permission denied" in again.engine.health.troubles["compaction of t-0"]
    assert again.engine.health.defects == 0


def test_a_slice_ends_after_its_time_and_the_next_goes_on_where_it_ended() -> None:
    class Ticking:
        now = 0.0

        def monotonic(self) -> float:
            Ticking.now += SLICE_SECONDS / 4
            return Ticking.now

        def now_ms(self) -> int:
            return 0

    done = []

    def work():  # type: ignore[no-untyped-def]
        for number in range(10):
            done.append(number)
            yield None

    steps = work()
    assert run_slice(steps, Ticking()).event is None
    assert done == [0, 1, 2, 3]
    run_slice(steps, Ticking())
    assert run_slice(steps, Ticking()).event is ENDED
    assert done == list(range(10))


def test_a_pass_makes_way_for_a_cut_and_comes_back_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker.cleaner")
    broker = Harness(tmp_path, cleaner_backoff_ms=1 << 40)
    broker.create("t", cleanup_policy="compact", segment_bytes="1000")
    fill(broker)
    log, cleaner = broker.engine.partitions.get("t", 0).log, broker.engine._cleaner
    cleaner.work(broker.clock.monotonic())
    assert log.is_compacting
    tickets: list[TruncationTicket] = []
    log.when_quiet(lambda: tickets.append(log.begin_truncation(45)))
    broker.settle()
    assert len(tickets) == 1
    assert passes(caplog) == 0, "it has not come to its end"
    tickets[0].run()
    log.finish_truncation(tickets[0])
    cleaner.work(broker.clock.monotonic())
    broker.settle()
    assert passes(caplog) == 1
    assert {record.key for record in records(broker)} == {b"key-%d" % number for number in range(4)}
