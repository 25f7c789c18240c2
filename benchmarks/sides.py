"""Our broker and Apache Kafka up at the same time on one machine, measured in turns.

In turns, because a shared machine is faster one minute and slower the next: each round measures both within seconds, and the
median of the rounds is reported. What a broker's work cost is its CPU time from before the load until all of it is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from rich.console import Console

from benchmarks.peers.kafka import ApacheKafka, JvmTools, Missing
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.processes import wait_until

TIMEOUT_SECONDS = 60.0
OURS, PEER = "logbus", "Apache Kafka"
Broker = LogbusBroker | ApacheKafka


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run against one broker."""

    cpu_seconds: float
    records_per_second: float


@contextmanager
def both_brokers(directory: Path, console: Console) -> Iterator[Mapping[str, Broker]]:
    """Both sides by name; without the peer, said aloud, where this machine cannot run it."""
    with ExitStack() as stack:
        sides: dict[str, Broker] = {OURS: stack.enter_context(LogbusBroker(directory / "logbus"))}
        try:
            sides[PEER] = stack.enter_context(ApacheKafka(directory / "kafka"))
        except Missing as missing:
            console.print(f"[yellow]The peer is missing, only ours is measured:[/yellow] {missing}")
        yield sides


def tools_or_none(console: Console) -> JvmTools | None:
    """Kafka's load generator; without it there is nothing to compare with earlier figures."""
    try:
        return JvmTools.find()
    except Missing as missing:
        console.print(f"[yellow]Not measured:[/yellow] {missing}")
        return None


def measured(broker: Broker, run: Callable[[], float]) -> Cost:
    """Run a load that returns its records per second, and what it cost the broker."""
    before = broker.cpu_seconds()
    rate = run()
    return Cost(cpu_seconds=broker.cpu_seconds() - before, records_per_second=rate)


def create_topic(broker: Broker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(topic, num_partitions=1)], request_timeout=TIMEOUT_SECONDS)[topic].result(TIMEOUT_SECONDS)


def wait_visible(broker: Broker, topic: str, records: int) -> None:
    """Until a consumer could see them all: on disk, as far as the broker's own rules ask for."""
    client, partition = AdminClient({"bootstrap.servers": broker.bootstrap}), TopicPartition(topic, 0)

    def all_visible() -> bool:
        asked = client.list_offsets({partition: OffsetSpec.latest()}, request_timeout=TIMEOUT_SECONDS)
        end: int = asked[partition].result(TIMEOUT_SECONDS).offset
        return end >= records

    if not wait_until(all_visible, deadline_seconds=TIMEOUT_SECONDS):
        raise TimeoutError(f"{topic}: {records} records were not visible after {TIMEOUT_SECONDS:.0f} s")
