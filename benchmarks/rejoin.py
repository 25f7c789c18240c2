"""How soon one of three brokers is back after kill -9 if it has thousands of replicas.

All of them have records that were written since the last checkpoint, so that none can be taken as it is. Measured is from the
start of the process until it answers its clients, which it does once it has recovered its logs, is registered and has its roles;
and until the others count all of its replicas as in sync.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until
from rich.console import Console

from benchmarks.contest import contest
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import QUICK, RECORD_BYTES, Scale
from benchmarks.peers.cluster import BrokerCluster
from benchmarks.sides import OPEN_LOGBUS_CLUSTER, OURS, LogSide, Side
from benchmarks.startup import POLL_SECONDS, kafka_names_a_broker

PARTITIONS = 3_000  # each broker has a replica of all
READY = Target(ours_max=5.0)
_TOPIC = "wide"
_VALUE = b"v" * RECORD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Seconds from the start of the process."""

    ready: float
    in_sync: float

    def __str__(self) -> str:
        return f"ready after {self.ready:.2f} s, in sync after {self.in_sync:.2f} s"


def rejoin_figures(scale: Scale, console: Console) -> Iterator[Figure]:
    partitions = scale.records(PARTITIONS)
    with contest((OPEN_LOGBUS_CLUSTER,), replace(scale, share=QUICK.share), console, is_warm=False) as running:
        measured = running.measure(
            f"kill -9 with {partitions:,} replicas", lambda side, number: killed_and_back(side, number, partitions), (OURS,)
        )[OURS]
    title = f"start after kill -9, {partitions:,} replicas"
    ready, in_sync = [one.ready for one in measured.rounds], [one.in_sync for one in measured.rounds]
    yield figure(f"{title}: ready", "s", ours=ready, target=READY, note=measured.reason)
    yield figure(f"{title}: all in sync", "s", ours=in_sync, note=measured.reason)


def killed_and_back(side: Side, number: int, partitions: int) -> Return:
    """The same topic and another broker in each round."""
    cluster = cast(BrokerCluster, side.server)
    if number == 0:
        cast(LogSide, side).create(_TOPIC, partitions)
    cluster.wait_until_whole(_TOPIC)
    write_everywhere(cluster.bootstrap, partitions)
    broker = cluster.brokers[number % len(cluster.brokers)]
    broker.kill9()
    started = time.monotonic()
    broker.launch()
    wait_until(lambda: kafka_names_a_broker(broker.port), what=broker.name, poll_seconds=POLL_SECONDS)
    ready = time.monotonic()
    cluster.wait_until_whole()
    return Return(ready=ready - started, in_sync=time.monotonic() - started)


def write_everywhere(bootstrap: str, partitions: int) -> None:
    """A record in each partition, acknowledged by all replicas."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition in range(partitions):
        producer.produce(_TOPIC, _VALUE, partition=partition, on_delivery=delivered)
    producer.flush(PATIENCE_SECONDS)
    if failures:
        raise KafkaException(failures[0])
