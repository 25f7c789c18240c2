"""A search by time that fails, for whatever reason, is an error in its own row only.

A request that searches many partitions by time: what it hands to the pool, and what needs no thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.log.segment import Segment
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.admin import list_offsets
from tests.support.batches import NOW_MS, with_deltas
from tests.support.engine import Harness, batch

RECORD_AT, LARGEST = NOW_MS, -3


def asked(broker: Harness, timestamp: int) -> dict[int, tuple[int, int]]:
    """Error code and offset by partition."""
    return {row.partition_index: (row.error_code, row.offset) for row in list_offsets(broker, timestamp, 0, 1, topic="t")}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", partitions=2)
    for index, raw in enumerate((with_deltas(5, max_timestamp=NOW_MS + 10), batch(b"v", timestamp=NOW_MS))):
        harness.produce(raw, "t", index)
    harness.flush()
    return harness


@pytest.mark.parametrize("timestamp", [RECORD_AT, LARGEST])
def test_a_batch_that_contradicts_itself_is_an_error_of_its_row(broker: Harness, timestamp: int) -> None:
    assert asked(broker, timestamp) == {0: (ErrorCode.CORRUPT_MESSAGE, -1), 1: (0, 0)}


@pytest.mark.parametrize("timestamp", [RECORD_AT, LARGEST])
@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(5, "Input/output error"), ErrorCode.KAFKA_STORAGE_ERROR), (MemoryError(), ErrorCode.UNKNOWN_SERVER_ERROR)],
)
def test_what_fails_inside_a_search_is_an_error_of_its_row(
    broker: Harness, timestamp: int, error: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Segment.read
    broken = broker.engine.partitions.get("t", 0).log.segments.active

    def reading(segment: Segment, position: int, length: int) -> bytes:
        if segment is broken:
            raise error
        return read(segment, position, length)

    monkeypatch.setattr(Segment, "read", reading)
    assert asked(broker, timestamp) == {0: (code, -1), 1: (0, 0)}


PARTITIONS = 40


@pytest.fixture
def wide(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("wide", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        for step in range(2):
            harness.produce(batch(b"v", timestamp=NOW_MS + 100 * index + step), "wide", index)
    harness.flush()
    return harness


def searched(wide: Harness, timestamp: int) -> dict[int, tuple[int, int]]:
    """The offset and the timestamp found, by partition."""
    rows = list_offsets(wide, timestamp, *range(PARTITIONS), topic="wide")
    return {row.partition_index: (row.offset, row.timestamp) for row in rows}


def test_every_partition_gets_its_own_answer_and_few_jobs_find_them(wide: Harness) -> None:
    before = wide.thread_pool.submitted
    assert searched(wide, NOW_MS + 2001) == {
        index: (-1, -1) if index < 20 else (1, NOW_MS + 2001) if index == 20 else (0, NOW_MS + 100 * index)
        for index in range(PARTITIONS)
    }
    assert wide.thread_pool.submitted - before == 2, (
        "twenty searches, up to sixteen in a job; the twenty older partitions need none"
    )


def test_an_instant_behind_all_records_needs_no_thread(wide: Harness) -> None:
    before = wide.thread_pool.submitted
    assert set(searched(wide, NOW_MS + 100 * PARTITIONS).values()) == {(-1, -1)}
    assert wide.thread_pool.submitted == before


def test_searches_that_come_while_the_broker_stops_are_errors_of_their_rows(wide: Harness) -> None:
    wide.thread_pool.refusal = StorageError("the wide is stopping")
    rows = list_offsets(wide, NOW_MS, *range(20), topic="wide")
    assert [row.error_code for row in rows] == [ErrorCode.KAFKA_STORAGE_ERROR] * 20


@pytest.fixture
def crashed(tmp_path: Path) -> Harness:
    """After a crash: offsets 0 and 1 are of epoch 0, offset 2 of epoch 1."""
    before = Harness(tmp_path)
    before.create("clicks")
    produce(before, b"a", b"b")
    before.crash()
    after = Harness(tmp_path)
    produce(after, b"c")
    return after


def produce(crashed: Harness, *values: bytes) -> None:
    crashed.produce(batch(*values))
    crashed.flush()


def ask(crashed: Harness, epoch: int, *, current: int = -1, topic: str = "clicks", version: int = 4) -> Any:
    row = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH).OffsetForLeaderTopic
    part = row.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    asked = [row(topic=topic, partitions=[part])]
    return crashed.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=asked).topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_client_learns_where_the_epoch_that_it_read_in_ended(crashed: Harness, version: int) -> None:
    rows = [ask(crashed, epoch, version=version) for epoch in (0, 1, 2)]
    assert [(row.error_code, row.leader_epoch, row.end_offset) for row in rows] == [(0, 0, 2), (0, 1, 3), (0, -1, -1)]


def test_a_client_with_another_epoch_than_ours_is_told_so(crashed: Harness) -> None:
    assert ask(crashed, 0, current=1).error_code == 0
    assert ask(crashed, 0, current=0).error_code == 74
    assert ask(crashed, 0, current=2).error_code == 75
    assert ask(crashed, 0, topic="absent").error_code == 3


def test_metadata_and_offsets_carry_the_epoch(crashed: Harness) -> None:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    answer = crashed.ask(ApiKey.METADATA, 7, topics=[row(name="clicks")], allow_auto_topic_creation=False)
    assert answer.topics[0].partitions[0].leader_epoch == 1
    # A client asks for the end of the epoch of what it got: that of the record, not of the leader.
    rows = [found(crashed, timestamp, version=7) for timestamp in (-2, 0, LARGEST, -1)]
    assert [(row.offset, row.leader_epoch) for row in rows] == [(0, 0), (0, 0), (1, 0), (3, 1)]


def found(broker: Harness, timestamp: int, *, topic: str = "clicks", version: int = 6) -> Any:
    (row,) = list_offsets(broker, timestamp, 0, topic=topic, version=version)
    return row


def test_offsets_are_found_by_place_and_by_time(broker: Harness) -> None:
    broker.create("clicks")
    for start in (1_000, 5_000):
        broker.produce(batch(b"a", b"b", timestamp=start))
    assert found(broker, -2).offset == 0
    assert found(broker, -1).offset == 4  # includes everything acknowledged before the request
    row = found(broker, 1_001)
    assert (row.offset, row.timestamp) == (1, 1_001)
    assert found(broker, 2_000).offset == 2
    assert (found(broker, 9_000).offset, found(broker, 9_000).error_code) == (-1, 0)
    assert found(broker, -9).error_code == 35
    assert found(broker, -1, topic="absent").error_code == 3


def test_the_first_record_with_the_largest_timestamp_is_found(broker: Harness) -> None:
    broker.create("clicks")
    assert (found(broker, -3, version=7).offset, found(broker, -3, version=7).error_code) == (-1, 0)
    for start in (1_000, 9_000, 9_000, 5_000):
        broker.produce(batch(b"a", b"b", timestamp=start))
    broker.flush()
    row = found(broker, -3, version=7)
    assert (row.offset, row.timestamp) == (3, 9_001)


@pytest.mark.parametrize(("timestamp", "since", "offset"), [(-3, 7, 1), (-4, 8, 0), (-5, 9, -1)])
def test_special_offsets_are_answered_from_the_version_that_has_them(
    broker: Harness, timestamp: int, since: int, offset: int
) -> None:
    broker.create("clicks")
    broker.produce(batch(b"a", b"b", timestamp=1_000))
    assert found(broker, timestamp, version=since - 1).error_code == 35
    for version in range(since, 11):
        row = found(broker, timestamp, version=version)
        assert (row.error_code, row.offset) == (0, offset)
