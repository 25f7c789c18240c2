"""The long run of tests/fault/broker/test_kill.py. LOGBUS_SOAK_SEED chooses other moments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.broker import LogbusBroker
from tests.support.killing import kill_under_load

ROUNDS = int(os.environ.get("LOGBUS_SOAK_KILLS", "100"))
SEED = int(os.environ.get("LOGBUS_SOAK_SEED", "1"))


@pytest.mark.timeout(3600)
def test_a_hundred_kills_lose_and_repeat_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with LogbusBroker(tmp_path / "broker", settings={"log.segment.bytes": "300000"}) as broker:
        acknowledged = kill_under_load(broker, "killed", ROUNDS, SEED)
    assert acknowledged > ROUNDS, "there was something to lose"
    print(f"{ROUNDS} kills, {acknowledged} acknowledged records, each stored once and in order")
