"""A disk that is full, or does not answer, under a broker alone: what producers get, what is told, and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus_broker.log.storage_watch import PROBE_BYTES
from logbus_broker.metrics import health
from logbus_broker.protocol.api import ErrorCode

from tests.support.engine import Harness, batch, produced
from tests.support.logs import FailingDisk

FULL = "3 of 4 partitions cannot be stored: No space left on device (clicks-0, clicks-1, clicks-2)\n"


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def broker(tmp_path: Path, disk: FailingDisk, caplog: pytest.LogCaptureFixture) -> Iterator[Harness]:
    harness = Harness(tmp_path, filesystem=disk)
    harness.create("clicks", 3)
    harness.create("other")
    caplog.set_level(logging.WARNING, logger="broker.log")
    yield harness
    disk.writable_bytes = None
    harness.close()


def produce(broker: Harness, *indexes: int) -> list[int]:
    """To each of these partitions in one turn; what is answered."""
    pending = [broker.produce(batch(b"one"), index=index) for index in indexes]
    broker.turn()
    return [produced(one).error_code for one in pending]


def test_a_full_disk_is_told_once_and_over_when_there_is_room(
    broker: Harness, disk: FailingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.writable_bytes = 0
    for _ in range(3):
        assert produce(broker, 0, 1, 2) == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    told = "cannot store clicks-0, clicks-1, clicks-2: No space left on device: producers are refused until that is over"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("CRITICAL", told)]
    assert health(broker.engine) == (False, FULL)
    disk.writable_bytes = PROBE_BYTES - 1
    broker.settle(after_ms=1_000)
    assert health(broker.engine) == (False, FULL), "too little"
    disk.writable_bytes = None
    broker.settle(after_ms=1_000)
    assert health(broker.engine) == (True, "ok\n")
    assert caplog.messages[1:] == ["clicks-0, clicks-1, clicks-2 can be stored again"]
    assert produce(broker, 0) == [0]
    assert not (broker.engine.config.log_dirs / "room.tmp").exists()


def test_a_disk_that_is_soon_full_again_is_probed_later_each_time(broker: Harness, disk: FailingDisk) -> None:
    pauses = []
    for _ in range(4):
        disk.writable_bytes = 0
        produce(broker, 0)
        disk.writable_bytes = None
        began = broker.clock.monotonic()
        while not health(broker.engine)[0]:
            broker.settle(after_ms=1_000)
        pauses.append(round(broker.clock.monotonic() - began))
    assert pauses == [1, 2, 4, 8]
    broker.settle(after_ms=60_000)
    disk.writable_bytes = 0
    produce(broker, 0)
    disk.writable_bytes = None
    broker.settle(after_ms=1_000)
    assert health(broker.engine)[0]


def test_what_is_deleted_or_offline_is_no_longer_full(broker: Harness, disk: FailingDisk) -> None:
    disk.writable_bytes = 0
    produce(broker, 0, 1)
    disk.writable_bytes = None
    broker.engine.partitions.get("clicks", 1).log.go_offline("damaged")
    assert "1 of 4 partitions cannot be stored" in health(broker.engine)[1]
    broker.delete("clicks")
    assert health(broker.engine) == (True, "ok\n")


def test_a_flush_that_does_not_end_is_told_until_it_does(broker: Harness, caplog: pytest.LogCaptureFixture) -> None:
    produce(broker, 0)
    broker.turn(after_ms=broker.engine.config.log.flush_interval_ms)
    assert broker.thread_pool.jobs, "the flush is in flight"
    assert health(broker.engine) == (True, "ok\n")
    broker.turn(after_ms=broker.engine.config.replica_flush_ms_max + 1)
    reason = "a flush takes longer than 10 s (logbus.replica.flush.max.ms)"
    assert health(broker.engine) == (False, f"1 of 4 partitions cannot be stored: {reason} (clicks-0)\n")
    broker.settle()
    broker.turn()
    assert health(broker.engine) == (True, "ok\n")
    broker.turn()
    assert caplog.messages[-1] == "clicks-0 can be stored again"
