"""aiokafka, which sends older request versions than the other clients: producer and assigned consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
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
