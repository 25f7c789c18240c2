"""Long run of test_produce_fast_path.py and test_fetch_fast_path.py (tests/property/broker). LOGBUS_SOAK_SEED chooses other cases; a
failure reports its seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import two_fetch_paths
from tests.support.two_paths import run

REQUESTS = int(os.environ.get("LOGBUS_SOAK_FAST_PATH_REQUESTS", "100000"))
SEED = os.environ.get("LOGBUS_SOAK_SEED", "1")
ROUND = 2_500  # requests to one pair of brokers


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("senders", "pipelined"), [(3, 1), (6, 12), (40, 60)])
def test_a_hundred_thousand_requests_are_answered_and_stored_as_without_the_fast_path(
    tmp_path: Path, senders: int, pipelined: int
) -> None:
    taken = 0
    for number in range(REQUESTS // ROUND // 3 + 1):
        seed = f"{SEED}/{number}"
        try:
            rivals = run(tmp_path / str(number), seed, ROUND, senders=senders, pipelined=pipelined)
            taken += rivals.on.taken
            rivals.close()
        except Exception as error:
            raise AssertionError(f"seed {seed!r}, {senders} senders, {pipelined} in a turn: {error!r}") from error
    assert taken > REQUESTS // 12


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("readers", [3, 30])
def test_a_hundred_thousand_fetches_are_answered_as_without_the_fast_path(tmp_path: Path, readers: int) -> None:
    taken = 0
    for number in range(REQUESTS // ROUND // 2 + 1):
        seed = f"{SEED}/{number}"
        try:
            rivals = two_fetch_paths.run(tmp_path / str(number), seed, ROUND, readers=readers)
            taken += rivals.on.fetches_taken
            rivals.close()
        except Exception as error:
            raise AssertionError(f"seed {seed!r}, {readers} readers: {error!r}") from error
    assert taken > REQUESTS // 12
