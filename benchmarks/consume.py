"""What consuming costs the broker: the same client (librdkafka, by assignment) reads the same records from both, in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.sides import OURS, PEER, Broker, Cost, both_brokers, create_topic, measured, tools_or_none, wait_visible

ROUNDS = 3
RECORDS = 1_500_000
RECORD_BYTES = 200
TOPIC = "read"


def run(console: Console) -> Sequence[Figure]:
    tools = tools_or_none(console)
    if tools is None:
        return ()
    costs: dict[str, list[Cost]] = {OURS: [], PEER: []}
    with tempfile.TemporaryDirectory() as scratch, both_brokers(Path(scratch), console) as sides:
        for name, broker in sides.items():
            console.print(f"filling {name}")
            create_topic(broker, TOPIC)
            tools.producer_performance(broker.bootstrap, TOPIC, records=RECORDS, record_bytes=RECORD_BYTES, properties=["acks=1"])
            wait_visible(broker, TOPIC, RECORDS)
            _read_all(broker)  # warm: the page cache on both sides, the compiler on the JVM's
        for _ in range(ROUNDS):
            for name, broker in sides.items():
                cost = measured(broker, lambda broker=broker: _read_all(broker))  # type: ignore[misc]
                costs[name].append(cost)
                console.print(f"{name}: {cost.cpu_seconds:.2f} s CPU, {cost.records_per_second:,.0f} records/s")
    cpu = {name: [cost.cpu_seconds for cost in costs[name]] for name in costs}
    rate = {name: [cost.records_per_second for cost in costs[name]] for name in costs}
    return (
        figure("1.5 M records consumed: broker CPU", "s", ours=cpu[OURS], peer=cpu[PEER], target=Target(ratio_max=0.5)),
        figure(
            "1.5 M records consumed: throughput", "records/s", ours=rate[OURS], peer=rate[PEER], target=Target(ratio_min=0.5)
        ),  # the one client is what limits both
    )


def _read_all(broker: Broker) -> float:
    """Every record once from the beginning; records per second."""
    settings = {"enable.partition.eof": True, "auto.offset.reset": "error", "enable.auto.commit": False, "group.id": "benchmark"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "fetch.queue.backoff.ms": 10, **settings})
    started, read, ended = time.monotonic(), 0, False
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while not ended:
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                read += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = True
            else:
                raise RuntimeError(error.str())
    consumer.close()
    if read != RECORDS:
        raise RuntimeError(f"{read} of {RECORDS} records arrived")
    return read / (time.monotonic() - started)
