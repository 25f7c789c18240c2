"""Seeded histories of one broker: kills, power cuts, pauses, slow, full or failing disks; its clients see nothing wrong."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from tests.sim.faults import KINDS
from tests.sim.single import draw_story, play
from tests.sim.stage import play_all
from tests.sim.switches import SWITCHES
from tests.support.examples import ALWAYS_THE_SAME, examples

USUAL = 40
SEEDS = examples(USUAL if ALWAYS_THE_SAME else 150)  # three thousand in `make soak`
FIRST = 0 if ALWAYS_THE_SAME else random.randrange(10**9)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The broker logs at length what its disk does to it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(7_200)  # for a long run
def test_clients_see_nothing_wrong_whatever_happens_to_the_machine() -> None:
    counts, kinds = play_all(range(FIRST, FIRST + SEEDS), draw_story, play)
    if SEEDS >= USUAL:
        assert counts["send ok"] > 20 * SEEDS, f"too little was tried: {counts}"
        assert counts["fast path"] > 5 * SEEDS, f"too little took the fast path: {counts}"
        assert counts["send unknown"], f"nothing was disturbed: {counts}"
        assert set(kinds) == set(KINDS), f"not everything was tried: {kinds}"


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_rule_that_is_switched_off_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SWITCHES[name].off(monkeypatch)
    assert SWITCHES[name].is_noticed(play), f"without the rule {name} the histories went as they do with it"


@pytest.mark.parametrize("seed", [5_600_962, 8_504_323])
def test_a_flush_that_failed_just_before_a_kill_loses_nothing_visible(seed: int) -> None:
    """The process ended before it could leave its mark: the next start finds in the page cache what a power cut would take."""
    assert not play(draw_story(seed)).kind
