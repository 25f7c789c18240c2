"""Histories of a cluster: three brokers over a simulated ZooKeeper, clients of all kinds, and any fault that may hit them.

Each history ends with healing: all faults are over, dead brokers are started, and within a minute every partition must have a
leader, and every replica must be in sync and equal to it. Then producers finish, a last consumer reads everything, and the
checker judges what the clients recorded.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.cluster_engine import Cluster
from logbus_broker.engine import Engine
from logbus_broker.log.partition import Partition
from logbus_broker.logs import BROKER_BUG

from tests.sim.cluster_faults import CLUSTER_KINDS, CONTROLLER, FOLLOWER, LEADER, ClusterFaults
from tests.sim.cluster_nodes import ClusterNode
from tests.sim.faults import draw
from tests.sim.invariants import Invariants
from tests.sim.stage import TOPIC, Played, Stage, Story, draw_plan, draw_storage
from tests.sim.world import MS, SECOND, Timeline
from tests.sim.zookeeper import SimZooKeeper

BROKERS = 3
SESSION_MS = 2_000
FLUSH_MS_MAX = 2_000  # logbus.replica.flush.max.ms
BUSY = 12 * SECOND  # faults occur for this long
HEALING = 60 * SECOND


def draw_story(seed: int, kinds: tuple[str, ...] = ()) -> Story:
    """`kinds`: only faults of these kinds."""
    chance = random.Random(f"{seed}/cluster")
    waits = chance.random() < 0.5
    partitions = chance.choice([1, 1, 2])
    promises = {0: "none", 1: "written", -1: "flushed" if waits else "replicated"}
    plan = partial(draw_plan, promises=promises, batches=(15, 50), gaps=[20 * MS, 100 * MS, 500 * MS])
    plans = tuple(plan(chance, number % partitions) for number in range(chance.randint(2, 3)))
    return Story(
        seed=seed,
        waits_for_flush=waits,
        minimum=chance.choice([1, 2, 2]),
        **draw_storage(chance),
        partitions=partitions,
        makes_topics=seed % 4 == 0,
        producers=plans,
        faults=draw(
            chance,
            since=2 * SECOND,
            until=BUSY,
            count=chance.randint(2, 9),
            nodes=[0, 1, 2, LEADER, LEADER, LEADER, FOLLOWER, FOLLOWER, CONTROLLER],
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
        if BROKER_BUG in record.getMessage():
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


class Leader(NamedTuple):
    """The leader of a partition, as its process is now."""

    state: PartitionState
    node: ClusterNode
    engine: Engine
    cluster: Cluster
    partition: Partition


class ClusterStage(Stage):
    """The world of one story."""

    def __init__(self, story: Story) -> None:
        super().__init__(story, busy=BUSY, rest_max=800 * MS)
        self.zookeeper = SimZooKeeper(Timeline(self.world), self.world.chance("zookeeper"))
        self.invariants = Invariants(self.world, self.zookeeper, waits_for_flush=story.waits_for_flush)
        self.nodes: list[ClusterNode] = [
            ClusterNode(
                self.world,
                self.network,
                broker,
                zookeeper=self.zookeeper,
                invariants=self.invariants,
                zookeeper_session_ms=SESSION_MS,
                replica_lag_ms_max=3_000,
                replica_flush_ms_max=FLUSH_MS_MAX,
                offsets_partitions=1,
                **self.node_settings(),
            )
            for broker in range(BROKERS)
        ]

    def is_over(self) -> bool:
        return bool(self.invariants.broken)

    def play(self) -> Played:
        """Begin, take the faults, heal, read everything."""
        with noticed_defects() as defects:
            problem = self._play()
        self.close_readers()
        for producer in self.producers:
            producer.close()
        return self.judged(self.invariants.broken or (defects[0] if defects else problem))

    def begin(self) -> None:
        """Three brokers are started, and a topic is created."""
        for number, node in enumerate(self.nodes):
            self.world.after(number * 100 * MS, node.start)
        self.world.after(SECOND, lambda: self.make_topic(**{"min.insync.replicas": str(self.story.minimum)}))

    def _play(self) -> str:
        faults = ClusterFaults(
            self.world,
            self.network,
            self.nodes,
            self.history,
            self.hosts,
            self.zookeeper,
            self.invariants,
            TOPIC,
            survives_one=self.story.minimum > 1,
        )
        faults.schedule(self.story.faults)
        self.invariants.has_only_disk_faults = {fault.kind for fault in self.story.faults} <= {"full disk", "hung disk"}
        self.begin()
        self.run(BUSY + SECOND)
        faults.end()
        return self._healed() or self.finish() or self._drained()

    def leader(self) -> Leader:
        """The one of the topic's first partition."""
        state = self.invariants.state(TOPIC, 0)
        assert state is not None
        node = self.nodes[state.leader]
        partition = node.held(TOPIC, 0)
        assert partition is not None
        assert node.engine is not None
        assert node.engine.cluster is not None
        return Leader(state, node, node.engine, node.engine.cluster, partition)

    # The end

    def _healed(self) -> str:
        """All is well again within a minute."""
        if self.until(lambda: not self.ailments(), HEALING):
            return ""
        return f"not healed: {'; '.join(self.ailments())}"

    def ailments(self) -> list[str]:
        """What is not as it should be with no fault active."""
        ailments = [f"{node.name} is down" for node in self.nodes if not node.is_serving]
        if not self.producers:
            return [*ailments, "the topic is not there"]
        for index in range(self.story.partitions):
            state = self.invariants.state(TOPIC, index)
            if state is None or state.leader < 0:
                ailments.append(f"partition {index} has no leader: {state}")
            elif len(state.isr) < BROKERS:
                ailments.append(f"partition {index} lacks replicas: {state}")
            elif (held := self.nodes[state.leader].held(TOPIC, index)) is None or not held.is_led:
                ailments.append(f"partition {index} is not led by {state.leader}, which should")
        return ailments

    def _drained(self) -> str:
        """At the very end a new consumer reads each partition from start to end; replicas are equal."""
        self.run(self.world.now + SECOND)
        # What is written is flushed before any client asks for the end, so that end is the log's.
        self.until(self._all_is_visible, 5 * SECOND)
        self.close_readers()
        for index in range(self.story.partitions):
            if problem := self.read(index) or self._differences(index):
                return problem
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


def quiet_stage(*, leader_confirm_ms: int | None = None, **changes: Any) -> ClusterStage:
    """Three brokers and a topic of one partition that begin, and nothing happens to them."""
    story = replace(draw_story(1), minimum=2, partitions=1, makes_topics=False, faults=(), waits_for_flush=False)
    stage = ClusterStage(replace(story, **changes))
    if leader_confirm_ms is not None:
        for node in stage.nodes:
            node.config = replace(node.config, leader_confirm_ms=leader_confirm_ms)
    stage.begin()
    return stage


def play(story: Story) -> Played:
    return ClusterStage(story).play()
