"""A search by time that fails, for whatever reason, is an error in its own row only."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.protocol.api import ApiKey, ErrorCode
from broker.storage.segment import Segment
from tests.support.admin import list_offsets
from tests.support.batches import NOW_MS, with_deltas
from tests.support.engine import Harness, batch
from tests.support.wire import produce_body

RECORD_AT, LARGEST = NOW_MS, -3


def asked(broker: Harness, timestamp: int) -> dict[int, tuple[int, int]]:
    """Error code and offset by partition."""
    return {row.partition_index: (row.error_code, row.offset) for row in list_offsets(broker, timestamp, 0, 1, topic="t")}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", partitions=2)
    for index, raw in enumerate((with_deltas(5, max_timestamp=NOW_MS + 10), batch(b"v", timestamp=NOW_MS))):
        harness.dispatch(ApiKey.PRODUCE, 9, produce_body({("t", index): raw}))
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
