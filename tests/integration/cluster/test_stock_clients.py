"""Every stock client against three brokers while the leader of its partitions is killed: what was acknowledged is stored, and
what an idempotent producer sent is stored once and in order.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.peers.java import JvmTools
from tests.support.clusters import RunningCluster
from tests.support.elections import PARTITIONS, PAUSE_SECONDS, RECORDS, elect_until, expected, meanwhile
from tests.support.jvm_session import TOOLS
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.ordeal import create_replicated
from tests.support.topics import admin, read_topic


@pytest.fixture
def replicated(cluster: RunningCluster, topic: str) -> str:
    """A topic with three replicas, all in sync."""
    create_replicated(cluster, topic, PARTITIONS)
    cluster.wait_until_healed(topic)
    return topic


def stored(cluster: RunningCluster, topic: str) -> dict[int, list[bytes | None]]:
    return {
        partition: [message.value() for message in messages]
        for partition, messages in read_topic(cluster.bootstrap, topic).items()
    }


def all_of_it() -> dict[int, list[bytes]]:
    return {partition: expected(partition) for partition in range(PARTITIONS)}


def test_the_cluster_is_seen_whole_from_every_broker(cluster: RunningCluster, replicated: str) -> None:
    everybody = [1, 2, 3]

    def whole() -> object:
        return (
            sorted(cluster.bootstrap.split(",")),
            cluster.controller(),
            {number: (leader, everybody, everybody) for number, leader in cluster.leaders(replicated).items()},
        )

    def seen(client: AdminClient) -> object:
        told = client.list_topics(timeout=PATIENCE_SECONDS)
        partitions = told.topics[replicated].partitions if replicated in told.topics else {}
        return (
            sorted(f"{node.host}:{node.port}" for node in told.brokers.values()),
            told.controller_id,
            {number: (one.leader, sorted(one.replicas), sorted(one.isrs)) for number, one in partitions.items()},
        )

    for broker in cluster.brokers.values():
        client = admin(broker.bootstrap)
        wait_until(lambda: seen(client) == whole(), what="the whole cluster in the metadata")  # noqa: B023
        assert seen(client) == whole()


@pytest.mark.long  # tests/fault/cluster/test_ordeals.py has producers of librdkafka under worse
def test_a_producer_of_librdkafka_goes_on_over_elections(cluster: RunningCluster, replicated: str) -> None:
    offsets: dict[bytes, int | None] = {}

    def produce() -> None:
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        producer = Producer({**settings, "linger.ms": 2})
        for number in range(RECORDS):
            producer.produce(
                replicated,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, message: offsets.update({message.value(): None if error else message.offset()}),
            )
            producer.poll(PAUSE_SECONDS)
        assert producer.flush(PATIENCE_SECONDS) == 0

    with meanwhile(produce) as is_over:
        elect_until(cluster, replicated, is_over)
    found = stored(cluster, replicated)
    # After some failovers the producer takes a new epoch, which may store a record again, but never out of order.
    assert {partition: list(dict.fromkeys(values)) for partition, values in found.items()} == all_of_it()
    assert all(found[int(value) % PARTITIONS][offset] == value for value, offset in offsets.items() if offset is not None)
    assert sorted(map(int, offsets)) == list(range(RECORDS))


@pytest.mark.long
def test_kafka_python_goes_on_over_elections(cluster: RunningCluster, replicated: str) -> None:
    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, acks="all", retry_backoff_ms=50)
        sent = []
        for number in range(RECORDS):
            sent.append(producer.send(replicated, b"%d" % number, partition=number % PARTITIONS))
            time.sleep(PAUSE_SECONDS)
        producer.flush(PATIENCE_SECONDS)
        assert [future.get(PATIENCE_SECONDS).offset for future in sent] == [number // PARTITIONS for number in range(RECORDS)]
        producer.close()

    with meanwhile(produce) as is_over:
        elect_until(cluster, replicated, is_over)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, enable_auto_commit=False, consumer_timeout_ms=PATIENCE_SECONDS * 1000
    )
    consumer.assign([TopicPartition(replicated, partition) for partition in range(PARTITIONS)])
    consumer.seek_to_beginning()
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for _ in range(RECORDS):
        record = next(consumer)
        found[record.partition].append(record.value)
    consumer.close()
    assert found == all_of_it()


@pytest.mark.long
def test_aiokafka_goes_on_over_elections(cluster: RunningCluster, replicated: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, acks="all") as producer:
            sent = []
            for number in range(RECORDS):
                sent.append(await producer.send(replicated, b"%d" % number, partition=number % PARTITIONS))
                await asyncio.sleep(PAUSE_SECONDS)
            told = [await asyncio.wait_for(one, PATIENCE_SECONDS) for one in sent]
            assert [one.offset for one in told] == [number // PARTITIONS for number in range(RECORDS)]

    async def consume() -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        async with AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap) as consumer:
            consumer.assign([AioPartition(replicated, partition) for partition in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            for _ in range(RECORDS):
                record = await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)
                found[record.partition].append(record.value)
        return found

    with meanwhile(lambda: asyncio.run(produce())) as is_over:
        elect_until(cluster, replicated, is_over)
    assert asyncio.run(consume()) == all_of_it()


def test_the_tools_of_the_jvm_go_on_over_elections(cluster: RunningCluster, topic: str) -> None:
    tools: JvmTools = jvm_tools_or_skip()
    shape = ("--partitions", str(PARTITIONS), "--replication-factor", "3")
    tools.topics(cluster.bootstrap, "--create", "--topic", topic, *shape)
    cluster.wait_until_healed(topic)
    records = 10_000

    def produce() -> None:
        load = ("--num-records", str(records), "--record-size", "100", "--throughput", "3000")
        properties = ("--producer-props", f"bootstrap.servers={cluster.bootstrap}", "retry.backoff.ms=50")
        said = tools.run(f"{TOOLS}.ProducerPerformance", "--topic", topic, *load, *properties)
        assert said.splitlines()[-1].startswith(f"{records} records sent")

    with meanwhile(produce) as is_over:
        elect_until(cluster, topic, is_over)
    assert sum(tools.end_offsets(cluster.bootstrap, topic).values()) == records  # idempotent: each of them once
    cluster.wait_until_healed(*cluster.topics())  # including other tests' topics, which the same brokers led
    described = tools.topics(cluster.bootstrap, "--describe", "--topic", topic)
    assert f"PartitionCount: {PARTITIONS}" in described
    assert "ReplicationFactor: 3" in described
    missing = ("--describe", "--under-replicated-partitions")
    wait_until(lambda: not tools.topics(cluster.bootstrap, *missing).strip(), what="every replica in the brokers' eyes")


@pytest.mark.long
def test_what_people_type_at_a_console_goes_on_over_elections(cluster: RunningCluster, replicated: str) -> None:
    tools: JvmTools = jvm_tools_or_skip()
    at = ("--bootstrap-server", cluster.bootstrap)
    lines = [f"line {number}" for number in range(2_000)]

    unread = set(lines)

    def read(*limits: str) -> list[str]:
        wanted = ("--topic", replicated, "--group", "console", "--from-beginning", *limits)
        return tools.run(f"{TOOLS}.consumer.ConsoleConsumer", *at, *wanted).splitlines()

    def type_commands() -> None:
        tools.console_produce(cluster.bootstrap, replicated, lines)
        # If the coordinator is killed between two commits, records may be read again, but never skipped.
        while unread:
            some = read("--timeout-ms", "600000", "--max-messages", str(len(unread)))
            assert some, "the group has read to the end, and not everything"
            assert set(some) <= set(lines)
            unread.difference_update(some)
        directories = tools.run(f"{TOOLS}.LogDirsCommand", *at, "--describe", "--topic-list", replicated)
        held = [one for broker in json.loads(directories.splitlines()[-1])["brokers"] for one in broker["logDirs"]]
        assert {row["partition"] for one in held for row in one["partitions"]} == {f"{replicated}-{n}" for n in range(PARTITIONS)}

    with meanwhile(type_commands) as is_over:
        elect_until(cluster, replicated, is_over)
    # A commit at the very end is lost if the coordinator was killed before it, since members are kept in memory only.
    assert set(read("--timeout-ms", "5000")) <= set(lines)
    groups = tools.run(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", "console")
    assert groups.count(replicated) == PARTITIONS
    found = [
        tools.console_consume(cluster.bootstrap, replicated, partition=n, count=size)
        for n, size in tools.end_offsets(cluster.bootstrap, replicated).items()
        if size
    ]
    assert sorted(line for part in found for line in part) == sorted(lines)  # idempotent: each of them once
    cluster.wait_until_healed(*cluster.topics())
    tools.run(f"{TOOLS}.LeaderElectionCommand", *at, "--election-type", "PREFERRED", "--all-topic-partitions")
    preferred = {partition: replicas[0] for partition, replicas in cluster.assignment(replicated).items()}
    wait_until(lambda: cluster.leaders(replicated) == preferred, what="the preferred leaders")
