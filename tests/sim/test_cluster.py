"""Seeded histories of a cluster: brokers, machines, links, disks, clocks and ZooKeeper fail; what was promised holds."""

from __future__ import annotations

import random

import pytest

from tests.sim import directed
from tests.sim.cluster import draw_story, play
from tests.sim.cluster_faults import CLUSTER_KINDS
from tests.sim.cluster_switches import CLUSTER_SWITCHES
from tests.sim.stage import play_all
from tests.support.examples import ALWAYS_THE_SAME, examples

PARTS = 4  # of the seeds, so that the workers share them
USUAL = 12
SEEDS = examples(USUAL if ALWAYS_THE_SAME else 250)  # of each part: twenty thousand in `make soak`
FIRST = 0 if ALWAYS_THE_SAME else random.randrange(10**9)


@pytest.mark.timeout(36_000)  # for a long run
@pytest.mark.parametrize("part", range(PARTS))
def test_what_a_cluster_has_promised_holds_whatever_happens_to_it(part: int) -> None:
    counts, kinds = play_all(range(FIRST + part * SEEDS, FIRST + (part + 1) * SEEDS), draw_story, play)
    if SEEDS >= USUAL:
        assert counts["send ok"] > 20 * SEEDS, f"too little was tried: {counts}"
        assert counts["send unknown"], f"nothing was disturbed: {counts}"
        assert len(kinds) > len(CLUSTER_KINDS) * (1 if ALWAYS_THE_SAME else 3) // 4, f"too little was tried: {kinds}"


@pytest.mark.parametrize("name", CLUSTER_SWITCHES)
def test_a_rule_of_replication_that_is_switched_off_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CLUSTER_SWITCHES[name].off(monkeypatch)
    assert CLUSTER_SWITCHES[name].is_noticed(play), f"without the rule {name} the histories went as they do with it"


@pytest.mark.parametrize("name", directed.STORIES)
def test_what_each_rule_is_for_does_no_harm(name: str) -> None:
    """Nor does a leader that its followers cannot hear add them to the set and remove them, over and over."""
    play_all(range(1 if ALWAYS_THE_SAME else examples(2)), directed.STORIES[name], play)
