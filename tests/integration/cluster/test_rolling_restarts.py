"""Brokers that are restarted one after the other, as for an upgrade, under every family of clients. Each has its own defaults, but
for acks=all and idempotence where it has that; an error that it does not get over by itself ends the test.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from kafka import KafkaConsumer, KafkaProducer
from logbus.waiting import PATIENCE_SECONDS

from tests.support.clusters import RunningCluster
from tests.support.jvm_session import TOOLS
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.ordeal import create_replicated
from tests.support.other_languages import Command, franz_go, kafkajs, roundtrip, sarama
from tests.support.topics import read_topic

PARTITIONS = 3
RECORDS = 800
PAUSE_SECONDS = 0.02  # between records: they take as long as a restart of each broker
VALUES = [b"%d" % number for number in range(RECORDS)]

Family = Callable[[str, str], Sequence[bytes]]  # by bootstrap servers and topic: what its group has read


def received(sending: Future[None], read: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """Until each value was there, some perhaps twice: a group commits now and then."""
    unread, values = set(VALUES), []
    while unread:
        if sending.done():
            sending.result()
        batch = list(read())
        unread.difference_update(batch)
        values += batch
    return values


def librdkafka(bootstrap: str, topic: str) -> list[bytes]:
    def send() -> None:
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number, value in enumerate(VALUES):
            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
            producer.poll(PAUSE_SECONDS)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert refused == []

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def read() -> Iterable[bytes]:
        for message in consumer.consume(100, 0.5):
            if message.error() is not None:
                raise KafkaException(message.error())
            yield message.value() or b""

    with ThreadPoolExecutor() as pool:
        values = received(pool.submit(send), read)
    consumer.close()
    return values


def kafka_python(bootstrap: str, topic: str) -> list[bytes]:
    def send() -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=True)
        sent = []
        for number, value in enumerate(VALUES):
            sent.append(producer.send(topic, value, partition=number % PARTITIONS))
            time.sleep(PAUSE_SECONDS)
        for future in sent:
            future.get(PATIENCE_SECONDS)
        producer.close()

    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap.split(","), group_id=topic, auto_offset_reset="earliest")

    def read() -> Iterable[bytes]:
        return [record.value for records in consumer.poll(500, max_records=100).values() for record in records]

    with ThreadPoolExecutor() as pool:
        values = received(pool.submit(send), read)
    consumer.close()
    return values


def aiokafka(bootstrap: str, topic: str) -> list[bytes]:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all") as producer:
            sent = []
            for number, value in enumerate(VALUES):
                sent.append(await producer.send(topic, value, partition=number % PARTITIONS))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.gather(*sent)

    async def receive() -> list[bytes]:
        unread, values = set(VALUES), []
        async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
            while unread:
                record = await consumer.getone()
                values.append(record.value)
                unread.discard(record.value)
        return values

    async def use() -> list[bytes]:
        values, _ = await asyncio.gather(receive(), send())
        return values

    return asyncio.run(use())


def java(bootstrap: str, topic: str) -> list[bytes]:
    """Kafka's own command-line tools."""
    tools = jvm_tools_or_skip()

    def send() -> None:
        load = ("--num-records", str(RECORDS), "--payload-monotonic", "--throughput", str(round(1 / PAUSE_SECONDS)))
        properties = ("--producer-props", f"bootstrap.servers={bootstrap}")
        text = tools.run(f"{TOOLS}.ProducerPerformance", "--topic", topic, *load, *properties)
        assert text.splitlines()[-1].startswith(f"{RECORDS} records sent"), text

    def read() -> Iterable[bytes]:
        limits = ("--max-messages", "400", "--timeout-ms", "60000")
        at = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic, "--from-beginning")
        return tools.run(f"{TOOLS}.consumer.ConsoleConsumer", *at, *limits).encode().splitlines()

    with ThreadPoolExecutor() as pool:
        return received(pool.submit(send), read)


def other_language(command: Command, bootstrap: str, topic: str) -> list[bytes]:
    milliseconds = f"{round(1000 * PAUSE_SECONDS)}ms"
    settings = {"bootstrap.servers": bootstrap}
    return roundtrip(command, VALUES, topic, settings, GROUP=topic, PAUSE=milliseconds, PARTITIONS=str(PARTITIONS))


FAMILIES: dict[str, Family] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "java": java,
    "sarama": partial(other_language, sarama),
    "franz-go": partial(other_language, franz_go),
    "kafkajs": partial(other_language, kafkajs),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_client_sends_each_record_once_and_its_group_reads_on_while_brokers_are_restarted(
    cluster: RunningCluster, topic: str, name: str
) -> None:
    create_replicated(cluster, topic, PARTITIONS)
    cluster.wait_until_healed(topic)
    with ThreadPoolExecutor() as pool:
        using = pool.submit(FAMILIES[name], cluster.bootstrap, topic)
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
            broker.start()
            cluster.wait_until_healed(topic)
        values = using.result()
    print(f"{name}: {len(values) - len(set(values))} of {RECORDS} records read twice")
    stored = [[int(message.value()) for message in messages] for messages in read_topic(cluster.bootstrap, topic).values()]
    assert stored == [sorted(numbers) for numbers in stored], "in order"
    assert sorted(itertools.chain.from_iterable(stored)) == list(range(RECORDS)), "each once"
    assert set(values) == set(VALUES)
