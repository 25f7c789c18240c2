"""One seed is one history, in every process; and removing a fault leaves the rest as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from tests.sim.single import draw_story, play
from tests.sim.world import MS, SECOND, NodeClock, World
from tests.support.examples import examples

SEEDS = range(examples(6))  # the same in another process
DIGESTS = "from tests.sim.test_world import digests; print(digests())"


def digests() -> str:
    return " ".join(play(draw_story(seed)).world.digest()[:16] for seed in SEEDS)


def test_events_happen_in_the_order_of_their_times_and_of_their_making() -> None:
    world = World(0)
    seen: list[str] = []
    for name, delay in (("c", 2 * MS), ("a", MS), ("b", MS)):
        world.after(delay, seen.append, name)
    world.run(SECOND)
    assert seen == ["a", "b", "c"]
    assert world.now == SECOND


def test_a_stream_of_chance_does_not_depend_on_what_others_draw() -> None:
    alone, busy = World(7), World(7)
    busy.chance("other").random()
    assert alone.chance("mine").random() == busy.chance("mine").random()


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
    found = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert found[0] == found[1] == digests()


def test_without_its_last_fault_a_history_begins_as_it_did() -> None:
    story = draw_story(3)
    last = story.faults[-1].at
    whole, shorter = play(story), play(replace(story, faults=story.faults[:-1]))
    before = [line for line in whole.world.trace if line[0] < last]
    assert before == [line for line in shorter.world.trace if line[0] < last]
