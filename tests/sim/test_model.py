"""The rules hold in every mode, and each of them is needed: with one switched off, histories fail."""

from __future__ import annotations

import pytest

from tests.sim.model import MODES, Rule, run

# By rule: the mode in which it matters most, and within how many histories its absence must be noticed.
NEEDED = {
    Rule.NEW_PROCESS_NEW_EPOCH: ("power-and-a-disk", 100),
    Rule.VOUCHING: ("power-and-a-disk", 100),
    Rule.DIVERGENCE: ("kills", 100),
    Rule.MINIMUM: ("no-eligible", 100),
    Rule.ELIGIBLE_CLEARED: ("minimum-changes", 150),
    Rule.VISIBLE_IS_FLUSHED: ("power-min-1", 100),
    Rule.CAS: ("kills", 100),
}
# Rules whose absence is seldom noticed: a few hundred histories would have let them pass.
SELDOM = {
    Rule.PENDING_COUNTS: ("kills-min-1", 4_000),
    Rule.INCARNATION: ("flush-and-a-disk", 2_000),
    Rule.EPOCH_START: ("kills", 2_000),
    Rule.FLUSHED_AT_START: ("kills", 1_000),
    Rule.ANSWER_FITS: ("kills-min-1", 15_000),
}


def test_every_rule_has_a_test() -> None:
    assert {*NEEDED, *SELDOM} == set(Rule)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_promised_is_lost(mode: str) -> None:
    summary = run(MODES[mode], range(120))
    assert not summary.failures
    assert summary.acknowledged > 120, "idle histories prove nothing"
    assert summary.epochs > 120


@pytest.mark.parametrize("rule", NEEDED, ids=lambda rule: rule.name)
def test_without_a_rule_promises_are_broken(rule: Rule) -> None:
    mode, seeds = NEEDED[rule]
    assert run(MODES[mode], range(seeds), [rule], failures_max=1).failures


@pytest.mark.long
@pytest.mark.parametrize("rule", SELDOM, ids=lambda rule: rule.name)
def test_without_a_rule_that_seldom_matters_promises_are_broken(rule: Rule) -> None:
    mode, seeds = SELDOM[rule]
    assert run(MODES[mode], range(seeds), [rule], failures_max=1).failures


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_nothing_promised_is_lost_in_thousands_of_histories(mode: str) -> None:
    assert not run(MODES[mode], range(120, 5_120)).failures
