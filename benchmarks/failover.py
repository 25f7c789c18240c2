"""What clients notice when a leader dies, and when one is stopped: three brokers of ours and three of Apache Kafka, in turns.

**Killed.** Two clients write to a partition, and its leader is killed (kill -9). Measured is from the kill until a record that is
handed over after it is acknowledged with acks=all. `EagerWriter` asks all brokers for metadata as soon as its connection breaks:
that is what the brokers take. The other client is librdkafka with its defaults, whose own pauses come on top.

How soon a death is noticed depends on the time limit of sessions. Each side has its own default: Apache Kafka on ZooKeeper 18 s,
ours 6 s, though it does not wait for that. So there are rows against an Apache Kafka with 6 s, too.

**Stopped.** A leader gets SIGTERM while librdkafka produces and consumes. A failed request is what such a user is told: a record
that was not delivered, or an error instead of a record. The figures are none if the consumer does not get what was acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, pairwise
from types import TracebackType
from typing import Protocol, Self, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.protocol.records import NewRecord, build_batch
from rich.console import Console

from benchmarks.contest import Contest, contest
from benchmarks.costs.wire import Connection, Refused, check_produced, metadata, metadata_frame, produce_frame
from benchmarks.figures import Figure, Target
from benchmarks.loads import QUICK, RECORD_BYTES, Scale
from benchmarks.peers.cluster import BrokerCluster
from benchmarks.sides import (
    KAFKA,
    KAFKA_6_S,
    OPEN_KAFKA_CLUSTER,
    OPEN_KAFKA_CLUSTER_6_S,
    OPEN_LOGBUS_CLUSTER,
    OURS,
    LogSide,
    Side,
)
from benchmarks.turns import compare

KILLS = 5  # of each side
ASK_SECONDS = 0.005  # between two questions of the eager client
EAGER, LIBRDKAFKA = "a client that asks all brokers", "librdkafka's defaults"
SECONDS = {EAGER: Target(ratio_max=0.2), LIBRDKAFKA: Target(ratio_max=0.5)}
PARTITIONS = 12  # of the topic whose leader is stopped: each broker leads a third
ROUNDS_PER_SECOND = 50  # of the steady producer: a record for each partition
QUIET_SECONDS = 2.0  # before and after a leader is stopped
_ACKS_ALL = -1
_VALUE = b"v" * RECORD_BYTES


class Writer(Protocol):
    def write(self) -> None:
        """Returns once one record more is acknowledged."""


class EagerWriter:
    """One record at a time. When its connection breaks, or an answer is an error, it asks all brokers who leads."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self._bootstraps = [broker.bootstrap for broker in cluster.brokers]
        self._topic = topic
        batch = build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, value=_VALUE)])
        self._frame = produce_frame(topic, batch, acks=_ACKS_ALL)
        self._connection: Connection | None = None

    def write(self) -> None:
        wait_until(self._is_written, what="an acknowledgement", poll_seconds=ASK_SECONDS, not_yet=(Refused, OSError))

    def _is_written(self) -> bool:
        connection = self._connection or Connection(self._leader())
        self._connection = None
        check_produced(connection.ask(self._frame), self._topic)
        self._connection = connection
        return True

    def _leader(self) -> str:
        """Its address, from the broker that knows the newest epoch."""
        answers = []
        for bootstrap in self._bootstraps:
            with suppress(Refused, OSError), Connection(bootstrap) as connection:
                answer = metadata(connection.ask(metadata_frame(self._topic)))
                addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
                for partition in answer.topics[0].partitions:
                    answers.append((partition.leader_epoch, addresses.get(partition.leader_id, "")))
        _, address = max(answers, default=(-1, ""))
        if not address:
            raise Refused(f"{self._topic} has no leader")
        return address


class ConfluentWriter:
    """librdkafka as it is if only the servers and acks=all, its default, are set."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
        self._topic = topic

    def write(self) -> None:
        outcomes: list[KafkaError | None] = []
        self._producer.produce(self._topic, _VALUE, on_delivery=lambda error, _: outcomes.append(error))
        while not outcomes:
            self._producer.poll(1.0)
        if outcomes[0] is not None:
            raise KafkaException(outcomes[0])


WRITERS: dict[str, Callable[[BrokerCluster, str], Writer]] = {EAGER: EagerWriter, LIBRDKAFKA: ConfluentWriter}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """How long each client waited, by its name."""

    seconds: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What users of a topic noticed. Gaps are the longest of any partition, between two acknowledgements or two received
    records."""

    failed: int
    write_gap_ms: float
    read_gap_ms: float

    def __str__(self) -> str:
        return (
            f"{self.failed} failed, nothing acknowledged for {self.write_gap_ms:.0f} ms, received for {self.read_gap_ms:.0f} ms"
        )


def failover_figures(scale: Scale, console: Console) -> Iterator[Figure]:
    """Without a warm-up: what is measured is waiting, and a broker that is killed starts cold again."""
    scale = replace(scale, rounds=max(scale.rounds, round(KILLS * scale.share)), share=QUICK.share)
    openers = OPEN_LOGBUS_CLUSTER, OPEN_KAFKA_CLUSTER, OPEN_KAFKA_CLUSTER_6_S
    with contest(openers, scale, console, is_warm=False) as running:
        yield from _killed_figures(running)
        yield from _stopped_figures(running)


def _killed_figures(running: Contest) -> Iterator[Figure]:
    peers = KAFKA, KAFKA_6_S
    measured = running.measure("kill -9 of a leader", leader_killed, (OURS, *peers))
    for client, target in SECONDS.items():
        for peer in peers:
            yield compare(
                f"kill -9 of a leader to the next acks=all write, {client}",
                "s",
                lambda outage, client=client: outage.seconds[client],  # type: ignore[misc]
                (measured[OURS], measured[peer]),
                against=peer,
                target=target,
            )


def _stopped_figures(running: Contest) -> Iterator[Figure]:
    measured = running.measure("SIGTERM to a leader", leader_stopped, (OURS, KAFKA))
    pair = measured[OURS], measured[KAFKA]
    title = "a leader is stopped under load"
    none = Target(ours_max=0)
    yield compare(f"{title}: failed requests", "", lambda one: float(one.failed), pair, against=KAFKA, target=none)
    yield compare(f"{title}: longest gap between acknowledgements", "ms", lambda one: one.write_gap_ms, pair, against=KAFKA)
    yield compare(f"{title}: longest gap between received records", "ms", lambda one: one.read_gap_ms, pair, against=KAFKA)


def leader_killed(side: Side, number: int) -> Outage:
    """It is back, and in sync, when this returns."""
    cluster, topic = _cluster_with(side, f"killed-{number}", 1)
    writers = {name: make(cluster, topic) for name, make in WRITERS.items()}
    for writer in writers.values():
        writer.write()
    leader = cluster.leader_of(topic)
    with ThreadPoolExecutor(len(writers)) as threads:
        killed = time.monotonic()
        leader.kill9()
        ends = [threads.submit(_written_at, writer) for writer in writers.values()]
        seconds = [end.result(PATIENCE_SECONDS) - killed for end in ends]
    leader.start()
    cluster.wait_until_whole()
    return Outage(seconds=dict(zip(writers, seconds, strict=True)))


def _cluster_with(side: Side, topic: str, partitions: int) -> tuple[BrokerCluster, str]:
    """The side's cluster, and the new topic, whose replicas are in sync."""
    cluster = cast(BrokerCluster, side.server)
    cast(LogSide, side).create(topic, partitions)
    cluster.wait_until_whole(topic)
    return cluster, topic


def _written_at(writer: Writer) -> float:
    writer.write()
    return time.monotonic()


def leader_stopped(side: Side, number: int) -> HandOver:
    """It is back, and in sync, when this returns."""
    cluster, topic = _cluster_with(side, f"stopped-{number}", PARTITIONS)
    with SteadyTraffic(cluster.bootstrap, topic) as traffic:
        traffic.wait_until_received()
        cluster.wait_until_whole()  # the group's own topic, too
        leader = cluster.leader_of(topic)
        time.sleep(QUIET_SECONDS)
        began = time.monotonic()
        leader.stop()
        time.sleep(QUIET_SECONDS)
        ended = time.monotonic()
    leader.start()
    cluster.wait_until_whole()
    return HandOver(
        failed=traffic.failed,
        write_gap_ms=longest_gap_ms(traffic.acknowledged_at, began, ended),
        read_gap_ms=longest_gap_ms(traffic.received_at, began, ended),
    )


def longest_gap_ms(times: dict[int, list[float]], began: float, ended: float) -> float:
    """The longest of any partition that overlaps the span; of one in which nothing happened, the whole span."""
    spans = [pairwise([began, *(time for time in row if began < time < ended), ended]) for row in times.values()]
    return max(((after - before) * 1000 for span in spans for before, after in span), default=(ended - began) * 1000)


class SteadyTraffic:
    """A producer that sends a record to every partition at fixed times, and a group's consumer. When its `with` ends, all that
    was acknowledged has been received; NotInTime if it is not."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
        reading = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **reading})
        self._consumer.subscribe([topic])
        self._ended = self._drained = False
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        self._acknowledged: set[bytes] = set()
        self._received: set[bytes] = set()
        self.failed = 0
        self.acknowledged_at: dict[int, list[float]] = defaultdict(list)
        self.received_at: dict[int, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        producing, consuming = self._threads
        self._ended = True
        producing.join()
        if error is None:
            self.wait_until_received()
        self._drained = True
        consuming.join()

    def wait_until_received(self) -> None:
        """Waits until everything that is acknowledged by now, and something at all, has been received."""
        acknowledged = frozenset(self._acknowledged)
        wait_until(lambda: self._received and acknowledged <= self._received, what="records that are acknowledged")

    def _produce(self) -> None:
        due = time.monotonic()
        for number in count():
            if self._ended:
                break
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self._topic, b"%d-%d" % (partition, number), partition=partition, on_delivery=self._delivered
                )
            due += 1 / ROUNDS_PER_SECOND
            while (ahead := due - time.monotonic()) > 0:
                self._producer.poll(ahead)
        self._producer.flush(PATIENCE_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
        else:
            self.acknowledged_at[message.partition() or 0].append(time.monotonic())
            self._acknowledged.add(message.value() or b"")

    def _consume(self) -> None:
        while not self._drained:
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.failed += 1
            else:
                self.received_at[message.partition() or 0].append(time.monotonic())
                self._received.add(message.value() or b"")
        self._consumer.close()
