"""Seeded histories of broker, ledger, loads and faults: nothing false is ever called exact (`make proof` runs more of them)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.proof.bench import Bench
from tests.proof.logs import BrokerLog
from tests.proof.machine import play, run
from tests.proof.story import FAULTS, FILE_FAULTS, draw
from tests.proof.switches import SWITCHES
from tests.support.examples import ALWAYS_THE_SAME, examples

USUAL = 24
SEEDS = examples(USUAL if ALWAYS_THE_SAME else 150)  # three thousand in `make soak`
FIRST = 0 if ALWAYS_THE_SAME else random.randrange(10**9)

# A missing check is noticed within this many histories that have the fault.
NOTICED_WITHIN = 60
# Histories to try first: what is noticed in few of them was last noticed in these. A stale number costs time and nothing else.
TELLING = {
    **dict.fromkeys(
        ("counts", "dead_letter_changed", "dead_letter_deleted", "election", "file_of_another", "ledger_restored"), 1
    ),
    **{"end_of_the_log": 2, "equation": 15, "hanging": 6, "row_moved": 14, "topic_id": 13, "unknown_head": 6, "witnesses": 1},
}


@pytest.mark.timeout(7_200)  # for a long run
def test_nothing_false_is_called_exact(bench: Bench) -> None:
    stories: list[str] = []
    summary = run(bench, range(FIRST, FIRST + SEEDS), tell=stories.append)
    assert not summary.failures, stories[0]
    tried = [summary.verdicts[word] > 0 for word in ("exact", "refused", "named")]
    assert all(tried) or (SEEDS < USUAL and any(tried)), f"nothing was tried: {summary}"


@pytest.fixture(scope="module")
def broker_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerLog]:
    log = BrokerLog(tmp_path_factory.mktemp("broker"))
    yield log
    log.close()


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("fault", [None, "restored", "made_again_and_rebased", "greedy_retention"])
def test_nothing_false_is_called_exact_over_a_real_broker(bench: Bench, broker_log: BrokerLog, fault: str | None) -> None:
    stories: list[str] = []
    summary = run(bench, range(FIRST, FIRST + examples(1)), fault=fault, log=broker_log, tell=stories.append)
    assert not summary.failures, stories[0]


@pytest.mark.parametrize("fault", sorted({*FAULTS, *FILE_FAULTS}))
def test_each_fault_is_named_or_refused(bench: Bench, fault: str) -> None:
    """A fault does not take effect in every history; when it does, it is reported."""
    verdicts: Counter[str] = Counter()
    for seed in (TELLING.get(fault, 0), *range(NOTICED_WITHIN)):
        played = play(bench, draw(seed, fault))
        assert played.violation is None, f"{played.story}\n{played.violation}"
        verdicts[played.verdict] += 1
        if verdicts["refused"] or verdicts["named"]:
            return
    pytest.fail(f"it never had an effect: {verdicts}")


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_check_that_is_switched_off_is_noticed(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SWITCHES[name]
    switch.off(monkeypatch)
    for seed in (TELLING.get(name, 0), *range(NOTICED_WITHIN)):
        if play(bench, draw(seed, switch.wanted)).violation:
            return
    pytest.fail(f"without the check {name} {NOTICED_WITHIN} histories went as they do with it")
