"""A request that searches many partitions by time: what it hands to helper threads, and what needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.protocol.api import ApiKey, ErrorCode
from tests.support.admin import list_offsets
from tests.support.batches import NOW_MS
from tests.support.engine import Harness, batch
from tests.support.wire import produce_body

PARTITIONS = 40


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("wide", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        for step in range(2):
            record = batch(b"v", timestamp=NOW_MS + 100 * index + step)
            harness.dispatch(ApiKey.PRODUCE, 9, produce_body({("wide", index): record}))
    harness.flush()
    return harness


def searched(broker: Harness, timestamp: int) -> dict[int, tuple[int, int]]:
    """The offset and the timestamp found, by partition."""
    rows = list_offsets(broker, timestamp, *range(PARTITIONS), topic="wide")
    return {row.partition_index: (row.offset, row.timestamp) for row in rows}


def test_every_partition_gets_its_own_answer_and_few_jobs_find_them(broker: Harness) -> None:
    before = broker.helpers.submitted
    assert searched(broker, NOW_MS + 2001) == {
        index: (-1, -1) if index < 20 else (1, NOW_MS + 2001) if index == 20 else (0, NOW_MS + 100 * index)
        for index in range(PARTITIONS)
    }
    assert broker.helpers.submitted - before == 2, (
        "twenty searches, up to sixteen in a job; the twenty older partitions need none"
    )


def test_an_instant_behind_all_records_needs_no_helper(broker: Harness) -> None:
    before = broker.helpers.submitted
    assert set(searched(broker, NOW_MS + 100 * PARTITIONS).values()) == {(-1, -1)}
    assert broker.helpers.submitted == before


def test_searches_that_come_while_the_broker_stops_are_errors_of_their_rows(broker: Harness) -> None:
    broker.helpers.refusal = StorageError("the broker is stopping")
    rows = list_offsets(broker, NOW_MS, *range(20), topic="wide")
    assert [row.error_code for row in rows] == [ErrorCode.KAFKA_STORAGE_ERROR] * 20
