"""Whatever bytes a peer sends, the broker answers or closes that connection: no exception, no growth, no state that stops the
next client. `make soak` runs a million cases; this test runs some ten thousand, the same in every run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from logbus_broker.protocol.api import ApiKey

from benchmarks.processes import rss_bytes
from tests.support.engine import batch
from tests.support.examples import examples
from tests.support.fuzzing import Fuzzer
from tests.support.mutations import mutated_frame
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

WARM_UP = 2_000
FRAMES = examples(50_000)
GROWTH_BYTES_MAX = 32 << 20


@pytest.mark.parametrize("seed", [2011, 2026])
def test_mutated_frames_crash_nothing_and_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    fuzzer = Fuzzer(tmp_path, seed)
    fuzzer.run(0, WARM_UP)
    before = rss_bytes(os.getpid())
    fuzzer.run(WARM_UP, FRAMES)
    assert rss_bytes(os.getpid()) - before < GROWTH_BYTES_MAX
    assert min(fuzzer.outcomes["refused"], fuzzer.outcomes["handled"]) > FRAMES // 10, "both sides of the line were met"
    harness = fuzzer.harness
    harness.create("afterwards")
    answer = harness.bytes_of(harness.dispatch(ApiKey.PRODUCE, 9, produce_body({("afterwards", 0): batch(b"one")})))
    assert produce_answer(answer)["afterwards", 0].error_code == 0
    harness.flush()
    answer = harness.bytes_of(harness.dispatch(ApiKey.FETCH, 12, fetch_body(Wanted(topic="afterwards"))))
    assert fetch_answer(answer).responses[0].partitions[0].records
    fuzzer.close()


def test_a_case_is_repeated_by_its_seed_and_number() -> None:
    assert [mutated_frame(7, number) for number in range(200)] == [mutated_frame(7, number) for number in range(200)]
    assert len({mutated_frame(7, number) for number in range(200)}) > 150
