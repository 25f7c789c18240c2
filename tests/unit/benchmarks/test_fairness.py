"""The rows computed from the bystander's waits and the broker's memory."""

from __future__ import annotations

from benchmarks.fairness import Outcome, part_figures
from benchmarks.figures import Figure


def rows(idle: list[float], *outcomes: Outcome, seconds_max: float | None = None) -> dict[str, Figure]:
    found = part_figures(idle, {"much": outcomes}, {"much": seconds_max})
    return {row.figure: row for row in found}


def outcome(wait_ms: float = 10.0, seconds: float = 1.0, kept_mib: float = 1.0, peak_mib: float = 100.0) -> Outcome:
    return Outcome(wait_ms=wait_ms, seconds=seconds, kept_mib=kept_mib, peak_mib=peak_mib)


def test_a_wait_is_fair_up_to_fifty_milliseconds():
    assert rows([1.0], outcome(wait_ms=49))["much: others wait at most"].held is True
    assert rows([1.0], outcome(wait_ms=51))["much: others wait at most"].held is False


def test_a_machine_that_is_slow_by_itself_is_allowed_for():
    assert rows([1.0, 9.0, 3.0], outcome(wait_ms=89))["much: others wait at most"].held is True


def test_memory_that_is_kept_has_a_bound_and_its_peak_has_none():
    found = rows([1.0], outcome(kept_mib=65))
    assert found["much: memory kept"].held is False
    assert (found["much: memory at its peak"].ours, found["much: memory at its peak"].held) == (100, None)


def test_a_request_has_a_bound_where_one_is_asked():
    assert rows([1.0], outcome(seconds=6), seconds_max=5)["much: takes"].held is False
    assert rows([1.0], outcome(seconds=6))["much: takes"].held is None


def test_the_median_of_the_rounds_is_told():
    assert rows([1.0], outcome(1), outcome(2), outcome(300))["much: others wait at most"].ours == 2
