"""Retention as the broker drives it: in slices with other work in between, and by a clock that may be wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from broker.chores import PAUSE_PER_SLICE
from broker.partitions.producer_memory import ENCODED_AT_ONCE_MAX
from broker.partitions.producer_state import ProducerState, SentBatch
from broker.partitions.retention_rounds import SEGMENTS_PER_STEP
from broker.protocol.api import ApiKey
from broker.storage.filesystem import FileSystem
from tests.support.engine import Harness, batch
from tests.support.manual_clock import ManualClock
from tests.support.wire import produce_body

DAY_MS = 86_400_000
CHECK_MS = 300_000


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", segment_bytes="100", retention_ms=str(7 * DAY_MS))
    for _ in range(5):
        raw = batch(b"value" * 10, timestamp=harness.clock.now_ms())
        harness.dispatch(ApiKey.PRODUCE, 9, produce_body({("t", 0): raw}))
        harness.flush()
    return harness


def check_retention(broker: Harness) -> int:
    """Run one check, and return the log start offset."""
    broker.clock.advance_ms(CHECK_MS)
    broker.settle()
    broker.flush()
    return broker.engine.partitions.get("t", 0).log_start_offset


@pytest.mark.parametrize("jump_ms", [365 * DAY_MS, DAY_MS, -DAY_MS, -365 * DAY_MS])
def test_a_clock_that_jumps_deletes_nothing(broker: Harness, jump_ms: int) -> None:
    broker.clock.jump_ms(jump_ms)
    assert [check_retention(broker) for _ in range(5)] == [0] * 5


def test_a_topic_that_nobody_writes_to_becomes_empty_in_its_time(broker: Harness) -> None:
    assert check_retention(broker) == 0
    broker.clock.advance_ms(8 * DAY_MS)
    broker.settle()
    broker.flush()
    assert check_retention(broker) == 5
    assert broker.engine.partitions.get("t", 0).end_offset == 5


class SlowDisk(FileSystem):
    """Renaming a file takes a millisecond, once `clock` is set."""

    clock: ManualClock | None = None

    def rename(self, path: Path, target: Path) -> None:
        super().rename(path, target)
        if self.clock is not None:
            self.clock.advance_ms(1)


@pytest.fixture
def slow(tmp_path: Path) -> Harness:
    """Segments of one batch, all expired: three partitions of `many` have five each, the one of `long` has 21. Active segments
    are kept."""
    disk = SlowDisk()
    harness = Harness(tmp_path, filesystem=disk)
    harness.create("many", partitions=3, segment_bytes="100", retention_ms=str(DAY_MS))
    harness.create("long", segment_bytes="100", retention_ms=str(DAY_MS))
    for topic, index, count in (("many", 0, 5), ("many", 1, 5), ("many", 2, 5), ("long", 0, 21)):
        for _ in range(count):
            raw = batch(b"value" * 10, timestamp=harness.clock.now_ms())
            harness.dispatch(ApiKey.PRODUCE, 9, produce_body({(topic, index): raw}))
            harness.turn()
    harness.flush()
    harness.clock.advance_ms(2 * DAY_MS)
    disk.clock = harness.clock
    return harness


def starts(broker: Harness) -> list[int]:
    """The log start offsets."""
    return [partition.log_start_offset for partition in broker.engine.partitions if not partition.topic.startswith("_")]


def next_slice(broker: Harness) -> None:
    """Wait as long as the loop would, and give it one turn."""
    waits_ms = math.ceil((broker.engine.next_deadline() - broker.clock.monotonic()) * 1000)
    broker.clock.advance_ms(max(waits_ms, 0))
    broker.engine.end_turn()


def test_a_round_is_cut_into_slices_and_the_loop_is_free_between_them(slow: Harness) -> None:
    began = slow.clock.monotonic()
    slow.engine.end_turn()
    slice_seconds = slow.clock.monotonic() - began
    assert starts(slow) == [4, 0, 0, 0], "the next slice is for the others"
    slow.engine.end_turn()  # begins the flush of the segment that the round has sealed
    assert slow.engine.next_deadline() >= began + slice_seconds * (1 + PAUSE_PER_SLICE) - 0.001
    assert starts(slow) == [4, 0, 0, 0], "not before the pause is over"
    next_slice(slow)
    assert starts(slow) == [4, 4, 0, 0]


def test_a_long_log_is_cut_too_and_lets_the_others_go_first(slow: Harness) -> None:
    seen = []
    for _ in range(20):
        seen.append(starts(slow)[3])
        next_slice(slow)
    assert starts(slow) == [4, 4, 4, 20]
    assert sorted(set(seen)) == [0, SEGMENTS_PER_STEP, 2 * SEGMENTS_PER_STEP, 20]


def test_a_topic_that_is_deleted_during_a_round_is_left_out(slow: Harness, caplog: pytest.LogCaptureFixture) -> None:
    slow.engine.end_turn()
    slow.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["many"], timeout_ms=1000)
    for _ in range(10):
        next_slice(slow)
    assert starts(slow) == [20]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_unreadable_note_is_a_trouble_of_its_partition_until_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(FileSystem):
        path: Path | None = None

        def read_bytes(self, path: Path) -> bytes:
            if path == self.path:
                raise PermissionError(13, "Permission denied", str(path))
            return super().read_bytes(path)

    disk = Unreadable()
    broker = Harness(tmp_path, filesystem=disk)
    for topic in ("t", "other"):
        broker.create(topic, segment_bytes="100", retention_ms=str(7 * DAY_MS))
        for _ in range(5):
            raw = batch(b"value" * 10, timestamp=broker.clock.now_ms())
            broker.dispatch(ApiKey.PRODUCE, 9, produce_body({(topic, 0): raw}))
            broker.flush()
    broker.close()
    broker = Harness(tmp_path, filesystem=disk)
    disk.path = tmp_path / "t-0" / "00000000000000000000.indexnote"
    broker.clock.advance_ms(8 * DAY_MS)
    for _ in range(3):
        check_retention(broker)
    assert starts(broker) in ([0, 5], [5, 0])
    assert list(broker.engine.health.troubles) == ["retention of t-0"]
    assert broker.engine.health.defects == 0
    assert len([record for record in caplog.records if "retention of t-0" in record.getMessage()]) == 1
    disk.path = None
    for _ in range(3):
        check_retention(broker)
    assert starts(broker) == [5, 5]
    assert broker.engine.health.troubles == {}


def test_the_trouble_of_a_partition_that_is_deleted_is_forgotten(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("broker.partitions.retention_rounds.apply_retention", refused)
    check_retention(broker)
    assert list(broker.engine.health.troubles) == ["retention of t-0"]
    broker.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["t"], timeout_ms=1000)
    broker.clock.advance_ms(CHECK_MS)
    broker.settle()
    assert broker.engine.health.troubles == {}


def test_nothing_is_deleted_while_the_snapshot_of_many_producers_is_written(broker: Harness) -> None:
    """The records may be the only place that tells what their producers have sent."""
    partition = broker.engine.partitions.get("t", 0)
    sent = SentBatch(0, 0, 0, 0, 0)
    partition.producers.restore({number: ProducerState(0, (sent,)) for number in range(2 * ENCODED_AT_ONCE_MAX)})
    broker.clock.advance_ms(8 * DAY_MS)
    broker.clock.tick_ms = 4  # a slice of a chore is over after a step
    partition.log.roll()
    assert partition.producer_memory.is_saving
    retention = broker.engine._retention
    retention.work(broker.clock.monotonic())
    assert partition.log_start_offset == 0
    broker.clock.tick_ms = 0
    broker.settle()
    assert not partition.producer_memory.is_saving
    check_retention(broker)
    assert check_retention(broker) == 5
    broker.close()
