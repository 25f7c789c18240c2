"""Long runs of tests/property/broker/test_mutated_frames.py and test_strangers.py. LOGBUS_SOAK_SEED chooses other cases; a failure
reports its seed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from benchmarks.processes import rss_bytes
from tests.support.defects import defects  # noqa: F401
from tests.support.fuzzing import Fuzzer
from tests.support.strangers import Gatehouse

FRAMES = int(os.environ.get("LOGBUS_SOAK_FRAMES", "1000000"))
STRANGERS = int(os.environ.get("LOGBUS_SOAK_STRANGERS", "1000000"))
SEED = int(os.environ.get("LOGBUS_SOAK_SEED", "1"))
GROWTH_BYTES_MAX = 64 << 20


@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_crash_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, SEED)
    fuzzer.run(0, FRAMES // 20)
    before = rss_bytes(os.getpid())
    fuzzer.run(FRAMES // 20, FRAMES)
    growth = rss_bytes(os.getpid()) - before
    print(f"{FRAMES} frames: {dict(fuzzer.outcomes)}, {growth / 2**20:.1f} MiB more resident memory")
    assert growth < GROWTH_BYTES_MAX
    fuzzer.close()


@pytest.mark.timeout(14_400)
def test_a_million_strangers_get_past_the_gate_with_the_right_password_only(
    tmp_path: Path,
    defects: list[str],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="broker")  # pytest keeps lines, and with their errors the connections
    gatehouse = Gatehouse(tmp_path, SEED, defects)
    gatehouse.run(0, STRANGERS // 20)
    before = rss_bytes(os.getpid())
    gatehouse.run(STRANGERS // 20, STRANGERS)
    growth = rss_bytes(os.getpid()) - before
    print(f"{STRANGERS} strangers: {dict(gatehouse.outcomes)}, {growth / 2**20:.1f} MiB more resident memory")
    assert growth < GROWTH_BYTES_MAX
    gatehouse.close()
