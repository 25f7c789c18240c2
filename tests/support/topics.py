"""Topics of tests: a name for each, made and deleted, read back: every record of every partition, with the stock client, by
assignment.

In a conftest.py: `from tests.support.topics import topic  # noqa: F401`
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from logbus.waiting import PATIENCE_SECONDS, wait_until

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create_topic(
    bootstrap: str,
    topic: str,
    settings: Mapping[str, Any] | None = None,
    *,
    partitions: int = 1,
    config: dict[str, str] | None = None,
) -> None:
    new = NewTopic(topic, num_partitions=partitions, config=config or {})
    client = AdminClient({"bootstrap.servers": bootstrap, **(settings or {})})  # kept alive: its futures end with it
    client.create_topics([new], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)


def send(bootstrap: str, topic: str, records: Iterable[Mapping[str, Any]], settings: Mapping[str, Any] | None = None) -> None:
    """Sends records, each given by the arguments of `Producer.produce`; returns once all of them are acknowledged."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **(settings or {})})
    for record in records:
        producer.produce(topic, **record, on_delivery=lambda error, _: errors.append(error) if error is not None else None)
    assert (producer.flush(PATIENCE_SECONDS), errors) == (0, [])


def delete_topic(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    client.delete_topics([topic], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Until the topic has `count`."""
    client = admin(bootstrap)
    client.create_partitions([NewPartitions(topic, count)], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Deletes the records before `offset`."""
    until, client = TopicPartition(topic, partition, offset), admin(bootstrap)
    client.delete_records([until], request_timeout=PATIENCE_SECONDS)[until].result(PATIENCE_SECONDS)


def partitions_of(bootstrap: str, topic: str) -> list[int]:
    return sorted(admin(bootstrap).list_topics(timeout=PATIENCE_SECONDS).topics[topic].partitions)


def offset_of(bootstrap: str, topic: str, partition: int, spec: OffsetSpec) -> int:
    """The answer of ListOffsets for one partition."""
    place, client = TopicPartition(topic, partition), admin(bootstrap)
    answer = client.list_offsets({place: spec}, request_timeout=PATIENCE_SECONDS)[place].result(PATIENCE_SECONDS)
    offset: int = answer.offset
    return offset


def wait_for_markers(bootstrap: str, topic: str, partition: int = 0) -> None:
    """Until no transaction is open: Kafka's brokers answer its end before the markers are in the partitions."""
    client, end = admin(bootstrap), {TopicPartition(topic, partition): OffsetSpec.latest()}

    def offset(isolation_level: IsolationLevel) -> int:
        (answer,) = client.list_offsets(end, isolation_level=isolation_level, request_timeout=PATIENCE_SECONDS).values()
        return answer.result(PATIENCE_SECONDS).offset

    levels = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
    wait_until(lambda: len({offset(level) for level in levels}) == 1, what=f"the markers of {topic}'s last transaction")


def read_partition(bootstrap: str, topic: str, partition: int = 0, *, offset: int = 0) -> list[Message]:
    """The records from `offset` to the end; the client checks offsets and CRCs."""
    return list(_read(bootstrap, TopicPartition(topic, partition, offset)))


def read_topic(bootstrap: str, topic: str) -> dict[int, list[Message]]:
    """The records of each partition."""
    return {partition: read_partition(bootstrap, topic, partition) for partition in partitions_of(bootstrap, topic)}


def _read(bootstrap: str, start: TopicPartition) -> Iterator[Message]:
    reading = {
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "group.id": "test",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
    }
    consumer = Consumer({"bootstrap.servers": bootstrap, **reading})
    try:
        # The end by ListOffsets, which waits until everything written is on disk and visible: a fetch does not.
        _, end_offset = consumer.get_watermark_offsets(start, timeout=PATIENCE_SECONDS)
        consumer.assign([start])
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"nothing arrived from {start} within {PATIENCE_SECONDS} s"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= end_offset:
                    return
                continue
            assert error is None, error
            yield message
    finally:
        consumer.close()
