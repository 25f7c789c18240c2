"""Disk faults as producers and consumers see them: an error code, nothing lost, and service resumes once the disk works."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.handler import Pending
from broker.config.settings import LogConfig
from broker.disk.filesystem import FileSystem, OpenFile
from broker.protocol.api import ApiKey, ErrorCode
from tests.support.engine import Harness, batch
from tests.support.logs import FailingDisk
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

SMALL_SEGMENTS = LogConfig(segment_bytes=200)


class RefusingFileSystem(FileSystem):
    """Creates no file while `refusal` is set, as a roll fails when descriptors, space or quota run out."""

    refusal = 0

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        if create and self.refusal:
            raise OSError(self.refusal, "refused", str(path))
        return super().open(path, create=create)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, filesystem=RefusingFileSystem(), log=SMALL_SEGMENTS)
    harness.create("clicks")
    yield harness
    harness.close()


def produce(broker: Harness, raw: bytearray) -> tuple[int, int]:
    answer = broker.bytes_of(broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): bytes(raw)})))
    row = produce_answer(answer)["clicks", 0]
    return row.error_code, row.base_offset


def fetch(broker: Harness, offset: int) -> tuple[int, bytes]:
    (row,) = (
        fetch_answer(broker.bytes_of(broker.dispatch(ApiKey.FETCH, 12, fetch_body(Wanted(topic="clicks", offset=offset)))))
        .responses[0]
        .partitions
    )
    return row.error_code, bytes(row.records or b"")


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT])
def test_a_roll_that_is_refused_fails_the_producer_keeps_readers_and_heals_by_itself(broker: Harness, refusal: int) -> None:
    assert produce(broker, batch(b"x" * 150)) == (0, 0)
    disk = broker.engine._filesystem
    assert isinstance(disk, RefusingFileSystem)
    disk.refusal = refusal
    assert produce(broker, batch(b"y" * 150)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    broker.flush()
    code, records = fetch(broker, 0)
    assert code == 0
    assert b"x" * 150 in records
    disk.refusal = 0
    assert produce(broker, batch(b"z" * 150)) == (0, 1)


def test_offsets_beyond_the_end_before_the_start_and_deleted_are_out_of_range(broker: Harness) -> None:
    for _ in range(5):
        assert produce(broker, batch(b"x" * 150))[0] == 0
    broker.flush()
    broker.engine.partitions.get("clicks", 0).log.delete_before(3)
    assert [fetch(broker, offset)[0] for offset in (-1, 0, 2, 3, 5, 6, 10**12)] == [1, 1, 1, 0, 0, 1, 1]


def test_who_waits_for_a_log_that_a_write_takes_offline_is_told_at_once(tmp_path: Path) -> None:
    """A producer whose flush hangs, and a consumer whose fetch may wait for a minute."""
    disk = FailingDisk()
    broker = Harness(tmp_path, filesystem=disk)
    broker.create("clicks", logbus_acks_all_waits_for_flush="true")
    broker.thread_pool.flushes_wait = True
    producer = broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"a")}))
    broker.turn()
    consumer = broker.dispatch(ApiKey.FETCH, 12, fetch_body(Wanted(topic="clicks", offset=0), wait_ms=60_000))
    broker.turn()
    assert isinstance(producer, Pending)
    assert isinstance(consumer, Pending)
    assert not producer.done
    assert not consumer.done
    disk.writable_bytes, disk.failing = 10, {"truncate"}
    assert produce(broker, batch(b"b")) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert produce_answer(broker.bytes_of(producer))["clicks", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (row,) = fetch_answer(broker.bytes_of(consumer)).responses[0].partitions
    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.close()
