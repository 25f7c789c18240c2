"""What histories of one broker and of a cluster have in common: a story drawn from a seed, clients of all kinds, and the end, at
which producers finish, a last consumer reads everything, and the checker judges what the clients recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from logbus_broker.settings import LogConfig

from tests.sim.checker import Verdict, check
from tests.sim.clients import Admin, Consumer, Producer, ProducerPlan, Watcher
from tests.sim.faults import Fault
from tests.sim.histories import History
from tests.sim.network import Network
from tests.sim.nodes import SimNode
from tests.sim.world import SECOND, World

TOPIC = "t"
FINISHING = 120 * SECOND
TRIES_MAX = 60  # attempts at shortening a failing story; each costs as much as the story itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is drawn from a seed before anything runs."""

    seed: int
    waits_for_flush: bool
    minimum: int = 1
    segment_bytes: int
    flush_interval_ms: int
    flush_messages: int
    checkpoint_ms: int
    partitions: int
    makes_topics: bool  # and deletes them, in parallel with the producers and consumers
    producers: tuple[ProducerPlan, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        mode = "acks=all waits for the flush" if self.waits_for_flush else "acks=all does not wait for the flush"
        plans = [
            f"  producer-{number}: partition {plan.partition}, acks={plan.acks}, {plan.batches} batches"
            f"{', idempotent' if plan.idempotent else ''}, {plan.in_flight_max} in flight"
            for number, plan in enumerate(self.producers)
        ]
        head = (
            f"seed {self.seed}: {mode}, min.insync.replicas={self.minimum}, segments of {self.segment_bytes} bytes, "
            f"{self.partitions} partitions"
        )
        return "\n".join([head, *plans, *(f"  {fault}" for fault in self.faults)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of a story."""

    story: Story
    verdict: Verdict
    world: World
    history: History
    took_fast_path: int  # how many produce requests took the fast path
    problem: str = ""  # what went wrong besides the checker's findings

    @property
    def kind(self) -> str:
        return self.problem.partition(":")[0] or ", ".join(self.verdict.names)

    def __str__(self) -> str:
        lines = [self.problem, *map(str, self.verdict.anomalies[:5])]
        return "\n".join([str(self.story), *(f"  => {line}" for line in lines if line)])


def draw_plan(
    chance: random.Random, partition: int, *, promises: Mapping[int, str], batches: tuple[int, int], gaps: Sequence[int]
) -> ProducerPlan:
    """`promises`: what an acknowledgement with these acks means."""
    acks, idempotent = chance.choice([(-1, True), (-1, True), (-1, True), (-1, False), (1, False), (1, True), (0, False)])
    return ProducerPlan(
        topic=TOPIC,
        partition=partition,
        batches=chance.randint(*batches),
        acks=acks,
        idempotent=idempotent and acks != 0,
        in_flight_max=chance.choice([1, 2, 5]),
        gap=chance.choice(gaps),
        records_max=chance.choice([1, 4]),
        value_bytes=chance.choice([20, 20, 200]),
        patience=chance.choice([3 * SECOND, 60 * SECOND, 60 * SECOND]),
        promise=promises[acks],
    )


def draw_storage(chance: random.Random) -> dict[str, int]:
    return {
        "segment_bytes": chance.choice([600, 3_000, 1 << 20]),
        "flush_interval_ms": chance.choice([10, 100, 1_000]),
        "flush_messages": chance.choice([1, 10, 100_000]),
        "checkpoint_ms": chance.choice([100, 500, 5_000]),
    }


class Stage:
    """The world of one story; `nodes` are the brokers' machines."""

    nodes: Sequence[SimNode]

    def __init__(self, story: Story, *, busy: int, rest_max: int) -> None:
        """Topics are created and deleted for as long as the stage is `busy`, with rests in between."""
        self.story = story
        self.world = World(story.seed)
        self.network = Network(self.world)
        self.history = History(lambda: self.world.now)
        self.hosts = [f"producer-{number}" for number in range(len(story.producers))] + ["consumer-0", "watcher-0"]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.watchers: list[Watcher] = []
        self._busy = busy
        self._rest_max = rest_max

    def node_settings(self) -> dict[str, Any]:
        story = self.story
        log = LogConfig(
            segment_bytes=story.segment_bytes,
            flush_interval_ms=story.flush_interval_ms,
            flush_interval_messages=story.flush_messages,
            acks_all_waits_for_flush=story.waits_for_flush,
            index_interval_bytes=200,
        )
        return {"log": log, "checkpoint_interval_ms": story.checkpoint_ms, "auto_create_topics_enable": False}

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self.nodes]

    def is_over(self) -> bool:
        """Whether the rest of the history does not matter any more."""
        return False

    def run(self, until: int) -> None:
        self.world.run(until, self.is_over)

    def until(self, is_so: Callable[[], bool], duration: int) -> bool:
        """Whether it becomes true within that time."""
        self.world.run(self.world.now + duration, lambda: self.is_over() or is_so())
        return is_so()

    # The clients

    def make_topic(self, **configs: str) -> None:
        """Once it is there, the clients begin."""
        self._admin("admin").create(TOPIC, self.story.partitions, len(self.nodes), configs, self._topic_is_there)

    def _admin(self, name: str) -> Admin:
        return Admin(self.world, self.network, self.history, name, self.brokers)

    def _topic_is_there(self) -> None:
        world, network, history, brokers = self.world, self.network, self.history, self.brokers
        if self.story.makes_topics:
            self._make_and_delete(self._admin("admin-1"), 0)
        for number, plan in enumerate(self.story.producers):
            self.producers.append(Producer(world, network, history, f"producer-{number}", brokers, plan))
        for index in range(self.story.partitions):
            self.consumers.append(Consumer(world, network, history, f"consumer-{index}", brokers, TOPIC, index))
            self.watchers.append(Watcher(world, network, history, f"watcher-{index}", brokers, TOPIC, index))

    def _make_and_delete(self, admin: Admin, number: int) -> None:
        """In parallel with the other clients, topics are created and deleted, under two names."""
        if self.world.now < self._busy:
            rest = admin.chance.randint(0, self._rest_max)
            name = f"side-{number % 2}"
            again = partial(self._make_and_delete, admin, number + 1)
            delete = partial(admin.delete, name, partial(self.world.after, rest, again))
            admin.create(name, 1 + number % 3, len(self.nodes), {}, partial(self.world.after, rest, delete))

    # The end

    def finish(self) -> str:
        """What is wrong, if a producer cannot finish."""
        if self.until(lambda: bool(self.producers) and all(one.is_done for one in self.producers), FINISHING):
            return ""
        return "stuck: a producer could not finish within two minutes"

    def close_readers(self) -> None:
        for client in (*self.consumers, *self.watchers):
            client.close()

    def read(self, index: int) -> str:
        """A new consumer reads a partition from start to end; returns what is wrong, if it cannot."""
        name = f"last-{index}"
        watcher = Watcher(self.world, self.network, self.history, f"{name}-watcher", self.brokers, TOPIC, index)
        reader = Consumer(self.world, self.network, self.history, name, self.brokers, TOPIC, index, bytes_max=1 << 20)
        is_read = self.until(lambda: watcher.latest is not None and reader.position >= watcher.latest, 20 * SECOND)
        watcher.close()
        reader.close()
        if not is_read:
            return f"stuck: partition {index} could be read to {reader.position}, its end is {watcher.latest}"
        self.history.add("drained", client=name, topic=TOPIC, partition=index, start=reader.start, end=reader.position)
        return ""

    def judged(self, problem: str) -> Played:
        return Played(
            story=self.story,
            verdict=check(self.history.events),
            world=self.world,
            history=self.history,
            took_fast_path=sum(node.took_fast_path for node in self.nodes),
            problem=problem,
        )


def play_all(
    seeds: Iterable[int], draw: Callable[[int], Story], play: Callable[[Story], Played]
) -> tuple[Counter[str], Counter[str]]:
    """Histories in which nothing may go wrong; returns what was counted in them, and their faults."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in seeds:
        played = play(draw(seed))
        assert not played.kind, (
            f"{shortened(played, play)}\n  play it again: python -m tests.sim --seed {seed} (--brokers 1 for one broker)"
        )
        counts.update(played.verdict.counts)
        counts["fast path"] += played.took_fast_path
        kinds.update(fault.kind for fault in played.story.faults)
    return counts, kinds


def shortened(played: Played, again: Callable[[Story], Played]) -> Played:
    """Without the faults that the failure does not need."""
    tries = 0
    for number in reversed(range(len(played.story.faults))):
        faults = played.story.faults
        if number < len(faults) and tries < TRIES_MAX:
            tries += 1
            shorter = again(replace(played.story, faults=(*faults[:number], *faults[number + 1 :])))
            if shorter.kind == played.kind:
                played = shorter
    return played
