"""Histories of one broker: clients of all kinds, and any fault that may hit the machine.

Each history ends with healing: all faults are over, the broker is started again, producers finish, and a last consumer reads
everything. Then the checker judges what the clients recorded.
"""

from __future__ import annotations

import random
from functools import partial

from tests.sim.faults import Faults, draw
from tests.sim.nodes import SimNode
from tests.sim.stage import Played, Stage, Story, draw_plan, draw_storage
from tests.sim.world import MS, SECOND

BUSY = 6 * SECOND  # faults occur for this long


def draw_story(seed: int, kinds: tuple[str, ...] = ()) -> Story:
    """`kinds`: only faults of these kinds."""
    chance = random.Random(f"{seed}/story")
    waits = chance.random() < 0.6
    partitions = chance.choice([1, 1, 2])
    # On one broker acks=all without waiting for the flush promises what acks=1 does: it is written.
    promises = {0: "none", 1: "written", -1: "flushed" if waits else "written"}
    plan = partial(draw_plan, promises=promises, batches=(10, 40), gaps=[5 * MS, 50 * MS, 300 * MS])
    plans = tuple(plan(chance, number % partitions) for number in range(chance.randint(2, 4)))
    return Story(
        seed=seed,
        waits_for_flush=waits,
        **draw_storage(chance),
        partitions=partitions,
        makes_topics=seed % 3 == 0,
        producers=plans,
        faults=draw(chance, until=BUSY, count=chance.randint(3, 9), kinds=kinds),
    )


def play(story: Story) -> Played:
    """Begin, take the faults, heal, read everything."""
    stage = Stage(story, busy=BUSY, rest_max=400 * MS)
    node = SimNode(stage.world, stage.network, 0, **stage.node_settings())
    stage.nodes = [node]
    node.start()
    faults = Faults(stage.world, stage.network, [node], stage.history, stage.hosts)
    faults.schedule(story.faults)
    stage.make_topic()
    stage.run(BUSY + SECOND)
    faults.end()
    problem = stage.finish()
    for producer in stage.producers:
        producer.close()
    if not problem:
        stage.run(stage.world.now + 5 * SECOND)  # what is written is flushed, so the visible end is the log's
        stage.close_readers()
        problem = next(filter(None, map(stage.read, range(story.partitions))), "")
    return stage.judged(problem)
