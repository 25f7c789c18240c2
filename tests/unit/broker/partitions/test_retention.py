"""Retention as the broker drives it: by a clock that may be set wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.protocol.api import ApiKey
from tests.support.engine import Harness, batch
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
    """Let one check pass; where the log starts now."""
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
