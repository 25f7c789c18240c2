"""The servers that are compared, each with the client that loads it: produce, consume, one record's round trip.

`LogSide` speaks Kafka's protocol: our broker and Apache Kafka, loaded by the same programs (Kafka's ProducerPerformance; its Java
consumer). `QueueSide` is a server that only its own client can load. The cost of a broker's work is counted from before the load
until all of it is visible to a consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.loads import RECORD_BYTES, Load
from benchmarks.peers.activemq import ACTIVEMQ_JARS, ActiveMq
from benchmarks.peers.cluster import ApacheKafkaOnZooKeeper, BrokerCluster
from benchmarks.peers.generator import Latency, LoadGenerator
from benchmarks.peers.java import KAFKA_JARS, JvmTools, producer_rate
from benchmarks.peers.kafka import ApacheKafka
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.peers.rabbitmq import AMQP_CLIENT, STREAM_CLIENT, RabbitMq
from benchmarks.peers.server import Server
from benchmarks.processes import POLL_SECONDS
from benchmarks.turns import Cost, cost_of

OURS, OURS_FLUSHING, KAFKA = "logbus", "logbus flushing", "Apache Kafka"
KAFKA_6_S = "Apache Kafka, sessions of 6 s"
RABBITMQ, RABBITMQ_STREAM, ACTIVEMQ = "RabbitMQ queue", "RabbitMQ stream", "ActiveMQ queue"


class Side(Protocol):
    """What can be measured on any server."""

    @property
    def server(self) -> Server | BrokerCluster: ...
    @property
    def has_latency(self) -> bool: ...
    def produce(self, load: Load, topic: str, *, records: int) -> Cost: ...
    def consume(self, topic: str, *, records: int) -> Cost: ...
    def latency(self, topic: str, *, records: int) -> Latency: ...
    def delete(self, topic: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSide:
    """A broker that speaks Kafka's protocol, or a cluster. Topics have these settings and, unless a load sets more, one
    partition, as in the paper."""

    server: LogbusBroker | ApacheKafka | BrokerCluster
    tools: JvmTools
    generator: LoadGenerator
    topic_config: Mapping[str, str] = field(default_factory=dict)
    has_latency: bool = True

    @classmethod
    def of(cls, server: LogbusBroker | ApacheKafka | BrokerCluster, *, into: Path) -> LogSide:
        """The side with its load generators; Missing if this machine cannot run them."""
        generator = LoadGenerator.compiled("KafkaLoad", KAFKA_JARS, address=server.bootstrap, into=into)
        return cls(server=server, tools=JvmTools.find(), generator=generator)

    def flushing_each_append(self) -> LogSide:
        """The side whose new topics have Kafka's log.flush.interval.messages=1, under its name as a topic setting."""
        return replace(self, topic_config={"flush.messages": "1"})

    def produce(self, load: Load, topic: str, *, records: int) -> Cost:
        """Produces all of a load into a new topic."""
        self.create(topic, load.partitions)
        records -= records % load.producers
        return cost_of(self.server, records, lambda: self._send(load, topic, records), part=f"{topic}-0")

    def _send(self, load: Load, topic: str, records: int) -> float:
        with ThreadPoolExecutor(load.producers) as processes:
            rates = list(processes.map(lambda _: self._send_once(load, topic, records // load.producers), range(load.producers)))
        self._wait_visible(topic, records, load.partitions)
        return sum(rates)

    def _send_once(self, load: Load, topic: str, records: int) -> float:
        summary = self.tools.producer_performance(
            self.server.bootstrap, topic, records=records, record_bytes=RECORD_BYTES, properties=load.properties
        )
        return producer_rate(summary)

    def consume(self, topic: str, *, records: int) -> Cost:
        return cost_of(
            self.server, records, lambda: self.generator.rate("consume", topic, records=records, record_bytes=RECORD_BYTES)
        )

    def latency(self, topic: str, *, records: int) -> Latency:
        self.create(topic)
        return self.generator.latency(topic, records=records, record_bytes=RECORD_BYTES)

    def delete(self, topic: str) -> None:
        client = self._admin()
        client.delete_topics([topic], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)

    def create(self, topic: str, partitions: int = 1) -> None:
        wanted = NewTopic(topic, num_partitions=partitions, config=dict(self.topic_config))
        client = self._admin()  # kept in a variable: a client that is garbage-collected drops its requests
        client.create_topics([wanted], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)

    def _wait_visible(self, topic: str, records: int, partitions: int) -> None:
        """Waits until a consumer can see all records: on disk, as far as the broker's own rules require."""
        client, wanted = self._admin(), {TopicPartition(topic, index): OffsetSpec.latest() for index in range(partitions)}

        def all_visible() -> bool:
            asked = client.list_offsets(wanted, request_timeout=PATIENCE_SECONDS)
            return sum(answer.result(PATIENCE_SECONDS).offset for answer in asked.values()) >= records

        wait_until(all_visible, what=f"what a consumer of {topic} can see of {records} records", poll_seconds=POLL_SECONDS)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSide:
    """A server with another protocol: its own client decides about batches, whatever the load specifies."""

    server: Server
    generator: LoadGenerator
    has_latency: bool = True  # whether its generator measures a record's round trip

    def produce(self, load: Load, topic: str, *, records: int) -> Cost:
        return self._cost("produce", topic, records)

    def consume(self, topic: str, *, records: int) -> Cost:
        return self._cost("consume", topic, records)

    def _cost(self, verb: str, topic: str, records: int) -> Cost:
        shape = {"records": records, "record_bytes": RECORD_BYTES}
        return cost_of(self.server, records, lambda: self.generator.rate(verb, topic, **shape))

    def latency(self, topic: str, *, records: int) -> Latency:
        return self.generator.latency(topic, records=records, record_bytes=RECORD_BYTES)

    def delete(self, topic: str) -> None:
        """Does nothing: a consumed queue is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """How the sides with these names are started, in their own directory; the ExitStack stops them."""

    names: tuple[str, ...]
    open: Callable[[Path, ExitStack], Mapping[str, Side]]


def _logbus(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    return {OURS: LogSide.of(stack.enter_context(LogbusBroker(directory / "server")), into=fresh(directory / "load"))}


def _logbus_flushing(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    server = LogbusBroker(directory / "server", settings={"logbus.acks.all.waits.for.flush": "true"})
    return {OURS_FLUSHING: LogSide.of(stack.enter_context(server), into=fresh(directory / "load"))}


def _kafka(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    return {KAFKA: LogSide.of(stack.enter_context(ApacheKafka(directory / "server")), into=fresh(directory / "load"))}


def _rabbitmq(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    """One server, two sides: the queue, and the stream that it also offers."""
    server = stack.enter_context(RabbitMq(directory / "server"))
    queue = LoadGenerator.compiled("AmqpLoad", AMQP_CLIENT, address=server.amqp, into=fresh(directory / "queue"))
    stream = LoadGenerator.compiled("StreamLoad", STREAM_CLIENT, address=server.stream, into=fresh(directory / "stream"))
    return {
        RABBITMQ: QueueSide(server=server, generator=queue),
        RABBITMQ_STREAM: QueueSide(server=server, generator=stream, has_latency=False),
    }


def _activemq(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
    server = stack.enter_context(ActiveMq(directory / "server"))
    generator = LoadGenerator.compiled("JmsLoad", ACTIVEMQ_JARS, address=server.address, into=fresh(directory / "load"))
    return {ACTIVEMQ: QueueSide(server=server, generator=generator)}


def _cluster(name: str, kind: type[LogbusBroker | ApacheKafkaOnZooKeeper], **settings: str) -> Opener:
    def start(directory: Path, stack: ExitStack) -> Mapping[str, Side]:
        named = {setting.replace("_", "."): value for setting, value in settings.items()}
        server = stack.enter_context(BrokerCluster.of(kind, directory / "server", settings=named))
        return {name: LogSide.of(server, into=fresh(directory / "load"))}

    return Opener(names=(name,), open=start)


OPEN_LOGBUS = Opener(names=(OURS,), open=_logbus)
OPEN_LOGBUS_FLUSHING = Opener(names=(OURS_FLUSHING,), open=_logbus_flushing)  # acks=all waits for the disk
OPEN_KAFKA = Opener(names=(KAFKA,), open=_kafka)
OPEN_LOGBUS_CLUSTER = _cluster(OURS, LogbusBroker)
OPEN_KAFKA_CLUSTER = _cluster(KAFKA, ApacheKafkaOnZooKeeper)
OPEN_KAFKA_CLUSTER_6_S = _cluster(KAFKA_6_S, ApacheKafkaOnZooKeeper, zookeeper_session_timeout_ms="6000")
OPEN_RABBITMQ = Opener(names=(RABBITMQ, RABBITMQ_STREAM), open=_rabbitmq)
OPEN_ACTIVEMQ = Opener(names=(ACTIVEMQ,), open=_activemq)


def fresh(directory: Path) -> Path:
    """A new directory."""
    directory.mkdir(parents=True)
    return directory
