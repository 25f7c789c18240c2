"""Groups of stock consumers under churn and kill -9, for minutes. LOGBUS_SOAK_SEED chooses another course of events."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.broker import LogbusBroker
from tests.support.churn import Churn
from tests.support.consumers import GROUP_SETTINGS

ROUNDS = int(os.environ.get("LOGBUS_SOAK_CHURNS", "100"))
SEED = int(os.environ.get("LOGBUS_SOAK_SEED", "1"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_under_churn_sees_every_acknowledged_record(tmp_path: Path, strategy: str) -> None:
    with LogbusBroker(tmp_path / "broker", settings=GROUP_SETTINGS) as broker:
        churn = Churn(broker, strategy, SEED)
        churn.run(ROUNDS)
        churn.close()
    assert churn.acknowledged
    assert churn.acknowledged <= churn.seen
    print(f"{strategy}: {ROUNDS} changes, {len(churn.acknowledged)} acknowledged records, each seen; {churn.repeats} seen again")
