"""aiokafka, which sends older request versions than the other clients: producer, assigned consumer, admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_SECONDS))


async def produce(broker: AnyBroker, topic: str, values: list[bytes], **settings: object) -> list[int]:
    """Produce to partition 0; returns the records' offsets."""
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        sent = [await producer.send(topic, value, partition=0, timestamp_ms=1000 + n) for n, value in enumerate(values)]
        return [(await one).offset for one in sent]


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": True}, {"acks": "all", "compression_type": "lz4"}], ids=str)
def test_records_come_back_as_they_were_sent(broker: AnyBroker, topic: str, settings: dict[str, object]) -> None:
    async def test() -> None:
        values = [b"value %d" % number for number in range(200)]
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await admin.close()
        assert await produce(broker, topic, values, **settings) == list(range(200))
        partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 50)
            assert [(await consumer.getone()).value for _ in range(150)] == values[50:]
            assert await consumer.end_offsets([partition]) == {partition: 200}
            found = await consumer.offsets_for_times({partition: 1120})
            assert found[partition].offset == 120

    run(test)


def test_it_administers_topics(broker: AnyBroker, topic: str) -> None:
    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"retention.ms": "1000"})])
            await admin.create_partitions({topic: NewPartitions(3)})
            (described,) = await admin.describe_topics([topic])
            assert sorted(part["partition"] for part in described["partitions"]) == [0, 1, 2]
            assert sorted(await described_values(admin, topic)) == ["1000"]
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "2000"})])
            assert await described_values(admin, topic) == ["2000"]
            await produce(broker, topic, [b"1", b"2", b"3"])
            partition = TopicPartition(topic, 0)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=2)}) == {partition: 2}
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    run(test)


async def described_values(admin: AIOKafkaAdminClient, topic: str) -> list[str]:
    """The values of retention.ms, the only setting requested."""
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": None})
    answers = await admin.describe_configs([asked], include_synonyms=True)
    return [setting[1] for answer in answers for resource in answer.resources for setting in resource[4]]
