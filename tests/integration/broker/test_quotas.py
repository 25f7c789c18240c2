"""Quotas as librdkafka meets them: it says that it is held up, everything arrives, and the members of a group stay."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import AnyBroker
from tests.support.raw_client import limit
from tests.support.topics import create_topic

RECORDS, VALUE = 45, b"x" * 10_000


def test_a_client_over_its_quota_is_held_up_and_loses_nothing(broker: AnyBroker) -> None:
    topic = "held-up"
    create_topic(broker.bootstrap, topic)
    limit(broker.bootstrap, "slow", producer_byte_rate=40_000.0, consumer_byte_rate=40_000.0)
    throttled: list[Any] = []
    lost: list[list[TopicPartition]] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "slow", "throttle_cb": throttled.append})

    def produce() -> bool:
        for _ in range(RECORDS):
            producer.produce(topic, VALUE)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return bool(throttled)

    wait_until(produce, what="a throttled producer")
    assert throttled[0].throttle_time > 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "slow",
            "group.id": f"{topic}-readers",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "throttle_cb": throttled.append,
        }
    )
    throttled.clear()
    consumer.subscribe([topic], on_lost=lambda _, partitions: lost.append(partitions))
    read: list[bytes] = []

    def all_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            read.append(message.value())
        return len(read) >= RECORDS and bool(throttled)

    wait_until(all_read, what="a throttled consumer")
    consumer.close()
    assert not lost
