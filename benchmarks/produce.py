"""What producing costs the broker: Apache Kafka's own load generator against both, in turns.

1 M records of 200 bytes at the producer's default batch, and 100 k requests of one record each with acks=1 and acks=0
(the paper's figure 4 measures batches of 50 and of 1).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.peers.kafka import JvmTools
from benchmarks.sides import OURS, PEER, Broker, Cost, both_brokers, create_topic, measured, tools_or_none, wait_visible

ROUNDS = 3
RECORD_BYTES = 200
WARM_UP_RECORDS = 200_000  # the JVM compiles its hot paths after some ten thousand calls
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One way of producing."""

    name: str
    records: int
    properties: tuple[str, ...]
    cpu_target: Target
    rate_target: Target | None = None


LOADS = (
    Load(
        name="1 M records, default batch, acks=1",
        records=1_000_000,
        properties=("acks=1",),
        cpu_target=Target(ratio_max=0.5, ours_max=1.0),
        rate_target=Target(ratio_min=0.9),
    ),
    Load(
        name="100 k requests of one record, acks=1",
        records=100_000,
        properties=("acks=1", "batch.size=0", "linger.ms=0"),
        cpu_target=Target(ratio_max=0.5),
    ),
    Load(
        name="100 k requests of one record, acks=0",
        records=100_000,
        properties=("acks=0", "batch.size=0", "linger.ms=0"),
        cpu_target=Target(ratio_max=0.5),
    ),
)


def run(console: Console) -> Sequence[Figure]:
    tools = tools_or_none(console)
    if tools is None:
        return ()
    with tempfile.TemporaryDirectory() as scratch, both_brokers(Path(scratch), console) as sides:
        for name, broker in sides.items():
            console.print(f"warming up {name}")
            _produce(
                tools, broker, "warm-up", Load(name="", records=WARM_UP_RECORDS, properties=("acks=1",), cpu_target=Target())
            )
        figures = [one for load in LOADS for one in _compare(tools, sides, load, console)]
        memory = {name: [broker.rss_bytes() / MIB] for name, broker in sides.items()}
    resident = figure(
        "resident memory afterwards", "MiB", ours=memory[OURS], peer=memory.get(PEER, ()), target=Target(ratio_max=0.5)
    )
    return [*figures, resident]


def _compare(tools: JvmTools, sides: Mapping[str, Broker], load: Load, console: Console) -> Sequence[Figure]:
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, broker in sides.items():
            topic = f"load-{LOADS.index(load)}-{number}"
            cost = _produce(tools, broker, topic, load)
            costs[name].append(cost)
            console.print(f"{load.name}: {name} {cost.cpu_seconds:.2f} s CPU, {cost.records_per_second:,.0f} records/s")
    cpu = {name: [cost.cpu_seconds for cost in costs.get(name, ())] for name in (OURS, PEER)}
    rate = {name: [cost.records_per_second for cost in costs.get(name, ())] for name in (OURS, PEER)}
    return (
        figure(f"{load.name}: broker CPU", "s", ours=cpu[OURS], peer=cpu[PEER], target=load.cpu_target),
        figure(f"{load.name}: throughput", "records/s", ours=rate[OURS], peer=rate[PEER], target=load.rate_target),
    )


def _produce(tools: JvmTools, broker: Broker, topic: str, load: Load) -> Cost:
    create_topic(broker, topic)

    def send() -> float:
        summary = tools.producer_performance(
            broker.bootstrap, topic, records=load.records, record_bytes=RECORD_BYTES, properties=load.properties
        )
        wait_visible(broker, topic, load.records)
        return _records_per_second(summary)

    return measured(broker, send)


def _records_per_second(summary: str) -> float:
    """From `1000000 records sent, 312500.0 records/sec (59.60 MB/sec), ...`."""
    found = re.search(r"([\d.]+) records/sec", summary)
    if found is None:
        raise ValueError(f"ProducerPerformance said nothing about records/sec: {summary!r}")
    return float(found[1])
