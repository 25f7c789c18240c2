"""One seed is one history, in every process; and removing a fault leaves the rest as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from tests.sim.single import draw_story, play
from tests.sim.world import SECOND, NodeClock, World
from tests.support.examples import examples

SEEDS = range(examples(6))  # the same in another process
DIGESTS = "from tests.sim.test_world import digests; print(digests())"


def digests() -> str:
    return " ".join(play(draw_story(seed)).world.digest()[:16] for seed in SEEDS)


def test_a_clock_keeps_its_time_when_its_rate_changes() -> None:
    world = World(0)
    clock = NodeClock(world)
    world.run(10 * SECOND)
    clock.set_rate(0.5)
    assert clock.monotonic() == 10
    world.run(14 * SECOND)
    assert clock.monotonic() == 12
    assert clock.until(13) >= 2 * SECOND


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def test_without_its_last_fault_a_history_begins_as_it_did() -> None:
    story = draw_story(3)
    last = story.faults[-1].at
    whole, shorter = play(story), play(replace(story, faults=story.faults[:-1]))
    before = [line for line in whole.world.trace if line[0] < last]
    assert before == [line for line in shorter.world.trace if line[0] < last]
