"""A cluster under load through one fault after another, judged by what its clients have recorded.

The load comes from stock clients (recorded_clients.py). The simulation's checker judges their history, and all replicas must hold
the same bytes in the end. How long nothing was acknowledged is reported but never asserted: it depends on the machine as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from confluent_kafka.admin import AdminClient, NewTopic
from logbus.errors import NotInTime
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.sim.checker import Verdict, check
from tests.sim.histories import History, write
from tests.support.clusters import RunningCluster
from tests.support.disturbing import Fault
from tests.support.recorded_clients import (
    RecordedConsumer,
    RecordedProducer,
    drain,
    names_of,
    new_history,
    with_sessions,
    without_writes,
)
from tests.support.stored_batches import difference, stored_batches

TOPIC = "ordeal"
PARTITIONS = 3
RATE = 400  # records per second and producer: batches of a few records, and a history that can be checked in seconds


@dataclass
class Ordeal:
    """One run. `timings` are the faults and, for each, the longest time without an acknowledged write to a partition."""

    cluster: RunningCluster
    seed: int
    history: History = field(default_factory=new_history)
    producers: list[RecordedProducer] = field(default_factory=list)
    timings: list[tuple[str, float]] = field(default_factory=list)
    leads: int = 0  # how many leader epochs have begun, over all partitions

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Run two producers and a consumer until the end of the block."""
        create_replicated(self.cluster, TOPIC, PARTITIONS)
        self.cluster.wait_until_healed(TOPIC)
        bootstrap = self.cluster.bootstrap
        with ExitStack() as clients:
            for number in (1, 2):
                producer = RecordedProducer(
                    f"p{number}", self.history, bootstrap, TOPIC, partitions=PARTITIONS, seed=self.seed + number, rate=RATE
                )
                self.producers.append(clients.enter_context(producer))
            clients.enter_context(RecordedConsumer("c", self.history, bootstrap, TOPIC, partitions=PARTITIONS))
            self.wait_for_writes()
            yield

    def disturb(self, name: str, fault: Fault) -> None:
        """Cause the fault, end it, and wait until writes continue and all replicas are in sync."""
        began = self.history.now()
        self.history.add("fault", kind=name)
        fault(self.cluster, TOPIC, self._chance)
        self.cluster.mend()
        self.wait_for_writes(name)
        self.cluster.wait_until_healed(TOPIC)
        longest = without_writes(self.history.events, began, self.history.now())
        self.timings.append((name, max(longest.values(), default=0.0)))

    def wait_for_writes(self, name: str = "the start") -> None:
        """Wait until each producer has got a new acknowledgement from every partition."""
        since = time.monotonic()
        waiting = {(producer.name, partition) for producer in self.producers for partition in range(PARTITIONS)}

        def all_have_written() -> bool:
            waiting.difference_update(
                (producer.name, partition)
                for producer in self.producers
                for partition, at in list(producer.acknowledged_at.items())
                if at > since
            )
            return not waiting

        try:
            wait_until(all_have_written, what=f"an acknowledgement of each partition after {name}", poll_seconds=0.02)
        except NotInTime as late:
            raise AssertionError(f"{late}: nothing acknowledged to {sorted(waiting)}\n{self.cluster.logs()}") from None

    def judge(self, keep: Path) -> Verdict:
        """Read everything, stop all brokers, compare their files. The history is written to `keep` for later analysis."""
        drain(self.history, self.cluster.bootstrap, TOPIC, partitions=PARTITIONS)
        self.cluster.wait_until_healed(TOPIC)
        self.leads = sum(state.leader_epoch + 1 for state in self.cluster.states(TOPIC).values())
        for broker in self.cluster.brokers.values():
            broker.stop()
        stored = {
            partition: {number: stored_batches(broker.data, TOPIC, partition) for number, broker in self.cluster.brokers.items()}
            for partition in range(PARTITIONS)
        }
        events = with_sessions(self.history.events, TOPIC, {partition: replicas[1] for partition, replicas in stored.items()})
        write(keep, events)
        for partition, replicas in stored.items():
            assert difference(replicas) == "", f"partition {partition}"
        return check(events)


def create_replicated(cluster: RunningCluster, topic: str, partitions: int) -> None:
    """A topic with as many replicas as there are brokers."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=len(cluster.brokers))
    client.create_topics([wanted], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)


def report(ordeal: Ordeal, verdict: Verdict) -> str:
    """The result of a run, as lines of text."""
    kinds: dict[str, list[float]] = {}
    for name, seconds in ordeal.timings:
        kinds.setdefault(name, []).append(seconds)
    times = "\n".join(
        f"  {name}, {len(seconds)} times: median {median(seconds):.2f} s, at most {max(seconds):.2f} s"
        for name, seconds in kinds.items()
    )
    return (
        f"{len(ordeal.timings)} faults, {ordeal.leads} leads of {PARTITIONS} partitions; longest time without an acknowledged write\n"
        f"{times}\n{dict(verdict.counts)}\n{names_of(verdict.anomalies)}"
    )
