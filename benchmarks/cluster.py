"""What three copies of every record cost: three brokers of ours against three of Apache Kafka, the same load in turns.

Topics have one partition and three replicas, and acks=all means at least two of them. The CPU time is that of all three brokers
together. A follower's share is reported separately, because that is what a cluster costs beyond one broker; the part of it that
goes into storing the records is measured on its own (costs/replica_append.py). After that, what clients notice of a broker that
dies or is stopped (failover.py), and how soon one with many replicas is back (rejoin.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rich.console import Console

from benchmarks.consume import consumer_figures
from benchmarks.contest import Contest, contest, topic
from benchmarks.costs import replica_append
from benchmarks.failover import failover_figures
from benchmarks.figures import Figure, Target
from benchmarks.loads import CLIENT_DEFAULTS, FLUSHED, Load, Scale
from benchmarks.peers.cluster import BrokerCluster
from benchmarks.produce import MEMORY, producer_figures
from benchmarks.rejoin import rejoin_figures
from benchmarks.sides import KAFKA, OPEN_KAFKA_CLUSTER, OPEN_LOGBUS_CLUSTER, OURS, LogSide, Side
from benchmarks.turns import compare

RATE, CPU = Target(ratio_min=1.0), Target(ratio_max=0.6)

DEFAULT_BATCH = Load(
    name="cluster, acks=all, default batch",
    records=1_000_000,
    properties=("acks=all", "enable.idempotence=false"),
    rate=RATE,
    cpu=CPU,
)
IDEMPOTENT = replace(CLIENT_DEFAULTS, name="cluster, defaults (idempotent, acks=all)", records=1_000_000, rate=RATE, cpu=CPU)
BATCH_1 = Load(
    name="cluster, acks=all, batch 1",
    records=30_000,
    properties=("acks=all", "enable.idempotence=false", "batch.size=0", "linger.ms=0"),
    rate=RATE,
    cpu=CPU,
)
LOADS = (DEFAULT_BATCH, IDEMPOTENT, BATCH_1)
ON_EVERY_DISK = replace(
    FLUSHED,
    name="cluster, acks=all on every disk, default batch",
    records=100_000,
    rate=Target(ratio_min=1.5),
    cpu=Target(ratio_max=0.5),
)
# What makes a topic's acknowledgement wait for the disks of all replicas: ours has a setting, Kafka flushes each append.
FLUSHING = {OURS: {"logbus.acks.all.waits.for.flush": "true"}, KAFKA: {"flush.messages": "1"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What one load cost the leader and, on average, a follower, in seconds per million records."""

    leader: float
    follower: float

    def __str__(self) -> str:
        return f"leader {self.leader:.2f}, each follower {self.follower:.2f} s CPU a million"


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with contest((OPEN_LOGBUS_CLUSTER, OPEN_KAFKA_CLUSTER), scale, console) as running:
        found = list(_figures(running))
    with tempfile.TemporaryDirectory(prefix="logbus-append-") as directory:
        found += replica_append.figures(Path(directory), scale, console)
    return [*found, *failover_figures(scale, console), *rejoin_figures(scale, console)]


def _figures(running: Contest) -> Iterator[Figure]:
    for load in LOADS:
        yield from producer_figures(load, running)
        yield from share_figures(load, running)
    yield from consumer_figures(running)
    yield running.memory(KAFKA, MEMORY)
    yield from producer_figures(ON_EVERY_DISK, _flushing(running))


def share_figures(load: Load, running: Contest) -> Sequence[Figure]:
    """Runs the load once more, with each broker's CPU time on its own: the one that spent most was the leader."""

    def once(side: Side, number: int) -> Shares:
        cluster, name = cast(BrokerCluster, side.server), f"shares-{topic(load, number)}"
        records = running.scale.records(load.records)
        before = cluster.cpu_seconds_each()
        side.produce(load, name, records=records)
        *followers, leader = sorted(
            (after - one) * 1e6 / records for one, after in zip(before, cluster.cpu_seconds_each(), strict=True)
        )
        side.delete(name)
        return Shares(leader=leader, follower=sum(followers) / len(followers))

    measured = running.measure(f"{load.name}: shares", once, (OURS, KAFKA), rounds=1)
    pair = measured[OURS], measured[KAFKA]
    return (
        compare(f"{load.name}: the leader's CPU", "s/million", lambda one: one.leader, pair, against=KAFKA),
        compare(f"{load.name}: a follower's CPU", "s/million", lambda one: one.follower, pair, against=KAFKA),
    )


def _flushing(running: Contest) -> Contest:
    """The same warm brokers, with topics whose records are on every disk before they are acknowledged."""
    present = {
        name: replace(side, topic_config=FLUSHING[name]) for name, side in running.present.items() if isinstance(side, LogSide)
    }
    return replace(running, present=present)
