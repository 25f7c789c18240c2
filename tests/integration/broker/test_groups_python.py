"""Consumer groups of the two clients written in Python: kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS, produce_numbers
from tests.support.topics import create_topic

COUNT = 20  # records in each partition


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


def test_kafka_python_shares_commits_leaves_and_goes_on(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": f"group-of-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 60_000,
        "heartbeat_interval_ms": 100,
    }
    first = KafkaConsumer(topic, **settings)
    while len(first.assignment()) < 2:
        first.poll(timeout_ms=500)
    second = KafkaConsumer(topic, **settings)
    while not (len(first.assignment()) == len(second.assignment()) == 1):
        first.poll(timeout_ms=500)
        second.poll(timeout_ms=500)
    assert first.assignment() | second.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    produce_numbers(broker.bootstrap, topic, 2, COUNT)
    for consumer in (first, second):
        found: list[bytes] = []
        while len(found) < COUNT:
            for records in consumer.poll(timeout_ms=200).values():
                found += [record.value for record in records]
        assert found == sorted(b"%d" % number for number in range(COUNT))
        (partition,) = consumer.assignment()
        consumer.commit({partition: OffsetAndMetadata(COUNT, "done", -1)})
        assert consumer.committed(partition, metadata=True).metadata == "done"
    second.close()
    while len(first.assignment()) < 2:
        first.poll(timeout_ms=500)
    assert {first.position(partition) for partition in first.assignment()} == {COUNT}
    first.close()


async def _aiokafka(bootstrap: str, topic: str) -> tuple[list[set[int]], list[bytes], int]:
    settings = {
        "bootstrap_servers": bootstrap,
        "group_id": f"group-of-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 60_000,
        "heartbeat_interval_ms": 100,
    }
    consumers = [AIOKafkaConsumer(topic, **settings) for _ in range(2)]
    for consumer in consumers:
        await consumer.start()
    while not all(len(consumer.assignment()) == 1 for consumer in consumers):
        await asyncio.sleep(0.02)
    shares = [{partition.partition for partition in consumer.assignment()} for consumer in consumers]
    await asyncio.to_thread(produce_numbers, bootstrap, topic, 2, COUNT)
    found = [(await consumer.getone()).value for consumer in consumers for _ in range(COUNT)]
    for consumer in consumers:
        await consumer.commit()
    await consumers[1].stop()
    while len(consumers[0].assignment()) < 2:
        await asyncio.sleep(0.02)
    position = await consumers[0].committed(AioPartition(topic, 1))
    await consumers[0].stop()
    return shares, found, position


def test_aiokafka_shares_commits_and_leaves(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    shares, found, position = asyncio.run(asyncio.wait_for(_aiokafka(broker.bootstrap, topic), PATIENCE_SECONDS))
    assert sorted(map(sorted, shares)) == [[0], [1]]
    assert sorted(found) == sorted([b"%d" % number for number in range(COUNT)] * 2)
    assert position == COUNT
