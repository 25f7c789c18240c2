"""Histories of a cluster: three brokers over a simulated ZooKeeper, clients of all kinds, and any fault that may hit them.

Each history ends with healing: all faults are over, dead brokers are started, and within a minute every partition must have a
leader, and every replica must be in sync and equal to it. Then producers finish, a last consumer reads everything, and the
checker judges what the clients recorded.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from broker.config.settings import LogConfig
from tests.sim.checker import check
from tests.sim.clients import Admin, Consumer, Producer, ProducerPlan, Watcher
from tests.sim.cluster_faults import CLUSTER_KINDS, CONTROLLER, FOLLOWER, LEADER, ClusterFaults
from tests.sim.cluster_nodes import ClusterNode
from tests.sim.faults import Fault, draw
from tests.sim.histories import History
from tests.sim.invariants import Invariants
from tests.sim.network import Network
from tests.sim.single import Played
from tests.sim.world import MS, SECOND, World, WorldTimeline
from tests.sim.zookeeper import SimZooKeeper

TOPIC = "t"
BROKERS = 3
SESSION_MS = 2_000
BUSY = 12 * SECOND  # faults occur for this long
HEALING = 60 * SECOND
FINISHING = 120 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStory:
    """What is drawn from a seed before anything runs."""

    seed: int
    waits_for_flush: bool
    minimum: int
    segment_bytes: int
    flush_interval_ms: int
    flush_messages: int
    checkpoint_ms: int
    partitions: int
    makes_topics: bool
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


def plan_of(chance: random.Random, partition: int, *, waits: bool) -> ProducerPlan:
    acks, idempotent = chance.choice([(-1, True), (-1, True), (-1, True), (-1, False), (1, False), (1, True), (0, False)])
    promise = {0: "none", 1: "written", -1: "flushed" if waits else "replicated"}[acks]
    return ProducerPlan(
        topic=TOPIC,
        partition=partition,
        batches=chance.randint(15, 50),
        acks=acks,
        idempotent=idempotent and acks != 0,
        in_flight_max=chance.choice([1, 2, 5]),
        gap=chance.choice([20 * MS, 100 * MS, 500 * MS]),
        records_max=chance.choice([1, 4]),
        value_bytes=chance.choice([20, 20, 200]),
        patience=chance.choice([3 * SECOND, 60 * SECOND, 60 * SECOND]),
        promise=promise,
    )


def draw_story(seed: int, kinds: tuple[str, ...] = ()) -> ClusterStory:
    """`kinds`: only faults of these kinds."""
    chance = random.Random(f"{seed}/cluster")
    waits = chance.random() < 0.5
    partitions = chance.choice([1, 1, 2])
    plans = tuple(plan_of(chance, number % partitions, waits=waits) for number in range(chance.randint(2, 3)))
    whom = [0, 1, 2, LEADER, LEADER, LEADER, FOLLOWER, FOLLOWER, CONTROLLER]
    return ClusterStory(
        seed=seed,
        waits_for_flush=waits,
        minimum=chance.choice([1, 2, 2]),
        segment_bytes=chance.choice([600, 3_000, 1 << 20]),
        flush_interval_ms=chance.choice([10, 100, 1_000]),
        flush_messages=chance.choice([1, 10, 100_000]),
        checkpoint_ms=chance.choice([100, 500, 5_000]),
        partitions=partitions,
        makes_topics=seed % 4 == 0,
        producers=plans,
        faults=draw(
            chance,
            since=2 * SECOND,
            until=BUSY,
            count=chance.randint(2, 9),
            nodes=whom,
            kinds=kinds,
            weights=CLUSTER_KINDS,
            lasts_max=chance.choice([2 * SECOND, 5 * SECOND]),
        ),
    )


class _Defects(logging.Handler):
    """What the broker itself reports as its defects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "defect of the broker" in record.getMessage():
            self.found.append(f"defect: {logging.Formatter().format(record)}")


@contextmanager
def noticed_defects() -> Iterator[list[str]]:
    """Of all brokers while the block runs. Their other log records are dropped."""
    logger, handler = logging.getLogger("broker"), _Defects()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class ClusterStage:
    """The world of one story."""

    def __init__(self, story: ClusterStory) -> None:
        self.story = story
        self.world = World(story.seed)
        self.network = Network(self.world)
        self.history = History(lambda: self.world.now)
        self.zookeeper = SimZooKeeper(WorldTimeline(self.world), self.world.chance("zookeeper"))  # type: ignore[arg-type]
        self.invariants = Invariants(self.world, self.zookeeper, waits_for_flush=story.waits_for_flush)
        self.nodes = [self._node(broker) for broker in range(BROKERS)]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.watchers: list[Watcher] = []

    def _node(self, broker: int) -> ClusterNode:
        story = self.story
        return ClusterNode(
            self.world,
            self.network,
            broker,
            zookeeper=self.zookeeper,
            invariants=self.invariants,
            log=LogConfig(
                segment_bytes=story.segment_bytes,
                flush_interval_ms=story.flush_interval_ms,
                flush_interval_messages=story.flush_messages,
                acks_all_waits_for_flush=story.waits_for_flush,
                index_interval_bytes=200,
            ),
            checkpoint_interval_ms=story.checkpoint_ms,
            auto_create_topics_enable=False,
            zookeeper_session_ms=SESSION_MS,
            replica_lag_ms_max=3_000,
            offsets_partitions=1,
        )

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self.nodes]

    def play(self) -> Played:
        """Begin, take the faults, heal, read everything."""
        with noticed_defects() as defects:
            problem = self._play()
        for client in (*self.producers, *self.consumers, *self.watchers):
            client.close()
        problem = self.invariants.broken or (defects[0] if defects else problem)
        return Played(
            story=self.story,  # type: ignore[arg-type]
            verdict=check(self.history.events),
            world=self.world,
            history=self.history,
            problem=problem,
        )

    def begin(self) -> None:
        """Three brokers are started, and a topic is created."""
        for number, node in enumerate(self.nodes):
            self.world.after(number * 100 * MS, node.start)
        self.world.after(SECOND, self._make_topic)

    def _play(self) -> str:
        world = self.world
        hosts = [f"producer-{number}" for number in range(len(self.story.producers))] + ["consumer-0", "watcher-0"]
        faults = ClusterFaults(
            world,
            self.network,
            self.nodes,
            self.history,
            hosts,
            self.zookeeper,
            self.invariants,
            TOPIC,
            survives_one=self.story.minimum > 1,
        )
        faults.schedule(self.story.faults)
        self.begin()
        self.run(BUSY + SECOND)
        faults.end()
        return self._healed() or self._finished() or self._drained()

    def run(self, until: int) -> None:
        """Run everything up to a time, while every invariant holds."""
        self.world.run(until, lambda: bool(self.invariants.broken))

    def until(self, is_so: Callable[[], bool], duration: int) -> bool:
        """Whether it becomes true within that time."""
        self.world.run(self.world.now + duration, lambda: bool(self.invariants.broken) or is_so())
        return is_so()

    def _make_topic(self) -> None:
        configs = {"min.insync.replicas": str(self.story.minimum)}
        self._admin("admin").create(TOPIC, self.story.partitions, BROKERS, configs, self._topic_is_there)

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
        if self.world.now < BUSY:
            rest = admin.chance.randint(0, 800 * MS)
            name = f"side-{number % 2}"
            again = partial(self._make_and_delete, admin, number + 1)
            delete = partial(admin.delete, name, partial(self.world.after, rest, again))
            admin.create(name, 1 + number % 3, BROKERS, {}, partial(self.world.after, rest, delete))

    # The end

    def _healed(self) -> str:
        """All is well again within a minute."""
        if self.until(lambda: not self.ailments(), HEALING):
            return ""
        return f"not healed: {'; '.join(self.ailments())}"

    def ailments(self) -> list[str]:
        """What is not as it should be with no fault active."""
        found = [f"{node.name} is down" for node in self.nodes if not node.is_serving]
        if not self.producers:
            return [*found, "the topic is not there"]
        for index in range(self.story.partitions):
            state = self.invariants.state(TOPIC, index)
            if state is None or state.leader < 0:
                found.append(f"partition {index} has no leader: {state}")
            elif len(state.isr) < BROKERS:
                found.append(f"partition {index} lacks replicas: {state}")
            elif (held := self.nodes[state.leader].held(TOPIC, index)) is None or not held.is_led:
                found.append(f"partition {index} is not led by {state.leader}, which should")
        return found

    def _finished(self) -> str:
        if self.until(lambda: all(one.is_done for one in self.producers), FINISHING):
            return ""
        return "stuck: a producer could not finish within two minutes"

    def _drained(self) -> str:
        """At the very end a new consumer reads each partition from start to end; replicas are equal."""
        self.run(self.world.now + SECOND)
        # What is written is flushed before any client asks for the end, so that end is the log's.
        self.until(self._all_is_visible, 5 * SECOND)
        for client in (*self.consumers, *self.watchers):
            client.close()
        for index in range(self.story.partitions):
            if problem := self._read(index) or self._differences(index):
                return problem
        return ""

    def _read(self, index: int) -> str:
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

    def _differences(self, index: int) -> str:
        self.until(lambda: self._is_equal(index), 35 * SECOND)  # the answer that says what is visible may be held back
        if not self._is_equal(index):
            return f"not equal: replicas of partition {index} end and are visible to {self._ends(index)}"
        return ""

    def _is_equal(self, index: int) -> bool:
        return len(set(self._ends(index))) == 1

    def _all_is_visible(self) -> bool:
        ends = [end for index in range(self.story.partitions) for end in self._ends(index)]
        return all(end is not None and end[0] == end[1] for end in ends)

    def _ends(self, index: int) -> list[tuple[int, int] | None]:
        """Where each replica ends, and how far it is visible."""
        held = [node.held(TOPIC, index) for node in self.nodes]
        return [None if one is None else (one.end_offset, one.visible_offset) for one in held]


def play(story: ClusterStory) -> Played:
    """Play one history."""
    return ClusterStage(story).play()


def shorten(played: Played, tries_max: int = 40) -> Played:
    """Without the faults that the failure does not need."""
    story: ClusterStory = played.story  # type: ignore[assignment]
    tries = 0
    for number in reversed(range(len(story.faults))):
        if number < len(story.faults) and tries < tries_max:
            tries += 1
            shorter = play(replace(story, faults=(*story.faults[:number], *story.faults[number + 1 :])))
            if shorter.kind == played.kind:
                story, played = shorter.story, shorter  # type: ignore[assignment]
    return played
