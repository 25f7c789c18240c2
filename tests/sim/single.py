"""Histories of one broker: clients of all kinds, and any fault that may hit the machine.

Each history ends with healing: all faults are over, the broker is started again, producers finish, and a last consumer reads
everything. Then the checker judges what the clients recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from broker.config.settings import LogConfig
from tests.sim.checker import Verdict, check
from tests.sim.clients import Admin, Consumer, Producer, ProducerPlan, Watcher
from tests.sim.faults import Fault, Faults, draw
from tests.sim.histories import History
from tests.sim.network import Network
from tests.sim.nodes import SimNode
from tests.sim.world import MS, SECOND, World

TOPIC = "t"
BUSY = 6 * SECOND  # faults occur for this long
HEALING = 120 * SECOND
TRIES_MAX = 60  # attempts at shortening a failing story; each costs as much as the story itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is drawn from a seed before anything runs."""

    seed: int
    waits_for_flush: bool
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
        head = f"seed {self.seed}: {mode}, segments of {self.segment_bytes} bytes, {self.partitions} partitions"
        return "\n".join([head, *plans, *(f"  {fault}" for fault in self.faults)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of a story."""

    story: Story
    verdict: Verdict
    world: World
    history: History
    took_lane: int = 0  # how many produce requests took the fast lane
    problem: str = ""  # what went wrong besides the checker's findings

    @property
    def kind(self) -> str:
        return self.problem.partition(":")[0] or ", ".join(self.verdict.names)

    def __str__(self) -> str:
        found = [self.problem, *map(str, self.verdict.anomalies[:5])]
        return "\n".join([str(self.story), *(f"  => {line}" for line in found if line)])


def plan_of(chance: random.Random, partition: int, *, waits: bool) -> ProducerPlan:
    acks, idempotent = chance.choice([(-1, True), (-1, True), (-1, True), (-1, False), (1, False), (1, True), (0, False)])
    # On one broker acks=all without waiting for the flush promises what acks=1 does: it is written.
    promise = {0: "none", 1: "written", -1: "flushed" if waits else "written"}[acks]
    return ProducerPlan(
        topic=TOPIC,
        partition=partition,
        batches=chance.randint(10, 40),
        acks=acks,
        idempotent=idempotent and acks != 0,
        in_flight_max=chance.choice([1, 2, 5]),
        gap=chance.choice([5 * MS, 50 * MS, 300 * MS]),
        records_max=chance.choice([1, 4]),
        value_bytes=chance.choice([20, 20, 200]),
        patience=chance.choice([3 * SECOND, 60 * SECOND, 60 * SECOND]),
        promise=promise,
    )


def draw_story(seed: int, kinds: tuple[str, ...] = ()) -> Story:
    """`kinds`: only faults of these kinds."""
    chance = random.Random(f"{seed}/story")
    waits = chance.random() < 0.6
    partitions = chance.choice([1, 1, 2])
    plans = tuple(plan_of(chance, number % partitions, waits=waits) for number in range(chance.randint(2, 4)))
    return Story(
        seed=seed,
        waits_for_flush=waits,
        segment_bytes=chance.choice([600, 3_000, 1 << 20]),
        flush_interval_ms=chance.choice([10, 100, 1_000]),
        flush_messages=chance.choice([1, 10, 100_000]),
        checkpoint_ms=chance.choice([100, 500, 5_000]),
        partitions=partitions,
        makes_topics=seed % 3 == 0,
        producers=plans,
        faults=draw(chance, until=BUSY, count=chance.randint(3, 9), kinds=kinds),
    )


class Stage:
    """The world of one story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = World(story.seed)
        self.network = Network(self.world)
        self.history = History(lambda: self.world.now)
        self.node = SimNode(
            self.world,
            self.network,
            0,
            log=LogConfig(
                segment_bytes=story.segment_bytes,
                flush_interval_ms=story.flush_interval_ms,
                flush_interval_messages=story.flush_messages,
                acks_all_waits_for_flush=story.waits_for_flush,
                index_interval_bytes=200,
            ),
            checkpoint_interval_ms=story.checkpoint_ms,
            auto_create_topics_enable=False,
        )
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.watchers: list[Watcher] = []

    def play(self) -> Played:
        """Begin, take the faults, heal, read everything."""
        world, node = self.world, self.node
        hosts = [f"producer-{number}" for number in range(len(self.story.producers))] + ["consumer-0", "watcher-0"]
        node.start()
        faults = Faults(world, self.network, [node], self.history, hosts)
        faults.schedule(self.story.faults)
        self._admin("admin").create(TOPIC, self.story.partitions, 1, {}, self._topic_is_there)
        world.run(BUSY + SECOND)
        faults.end()
        world.run(world.now + HEALING, lambda: bool(self.producers) and all(one.is_done for one in self.producers))
        problem = "" if all(one.is_done for one in self.producers) else "stuck: a producer could not finish within two minutes"
        for producer in self.producers:
            producer.close()
        if not problem:
            problem = self._drain()
        return Played(
            story=self.story,
            verdict=check(self.history.events),
            world=world,
            history=self.history,
            took_lane=node.took_lane,
            problem=problem,
        )

    def _admin(self, name: str) -> Admin:
        return Admin(self.world, self.network, self.history, name, [self.node.name])

    def _make_and_delete(self, admin: Admin, number: int) -> None:
        """In parallel with the other clients, topics are created and deleted, under two names."""
        if self.world.now < BUSY:
            rest = admin.chance.randint(0, 400 * MS)
            name = f"side-{number % 2}"
            delete = lambda: admin.delete(name, lambda: self.world.after(rest, self._make_and_delete, admin, number + 1))  # noqa: E731
            admin.create(name, 1 + number % 3, 1, {}, lambda: self.world.after(rest, delete))

    def _topic_is_there(self) -> None:
        if self.story.makes_topics:
            self._make_and_delete(self._admin("admin-1"), 0)
        brokers = [self.node.name]
        world, network, history = self.world, self.network, self.history
        for number, plan in enumerate(self.story.producers):
            self.producers.append(Producer(world, network, history, f"producer-{number}", brokers, plan))
        for partition in range(self.story.partitions):
            self.consumers.append(Consumer(world, network, history, f"consumer-{partition}", brokers, TOPIC, partition))
            self.watchers.append(Watcher(world, network, history, f"watcher-{partition}", brokers, TOPIC, partition))

    def _drain(self) -> str:
        """At the very end a new consumer reads each partition from start to end; returns what is wrong, if it cannot."""
        world = self.world
        world.run(world.now + 5 * SECOND)  # what is written is flushed, so the visible end is the log's
        for consumer in self.consumers:
            consumer.close()
        for watcher in self.watchers:
            watcher.close()
        for partition in range(self.story.partitions):
            brokers = [self.node.name]
            name = f"last-{partition}"
            watcher = Watcher(world, self.network, self.history, f"{name}-watcher", brokers, TOPIC, partition)
            reader = Consumer(world, self.network, self.history, name, brokers, TOPIC, partition, bytes_max=1 << 20)

            def is_read(watcher: Watcher = watcher, reader: Consumer = reader) -> bool:
                return watcher.latest is not None and reader.position >= watcher.latest

            world.run(world.now + 20 * SECOND, is_read)
            watcher.close()
            reader.close()
            if not is_read():
                return f"stuck: partition {partition} could be read to {reader.position}, its end is {watcher.latest}"
            self.history.add("drained", client=name, topic=TOPIC, partition=partition, start=reader.start, end=reader.position)
        return ""


def play(story: Story) -> Played:
    """Play one history."""
    return Stage(story).play()


def shorten(played: Played, again: Callable[[Story], Played] = play) -> Played:
    """Without the faults and producers that the failure does not need."""
    tries = 0
    for number in reversed(range(len(played.story.faults))):
        faults = played.story.faults
        if number < len(faults) and tries < TRIES_MAX:
            tries += 1
            shorter = again(replace(played.story, faults=(*faults[:number], *faults[number + 1 :])))
            if shorter.kind == played.kind:
                played = shorter
    return played
