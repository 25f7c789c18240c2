"""Requests of current clients take the fast path: librdkafka, kafka-python, aiokafka and the Java client, with their
defaults and other settings. Requests that must not take it: tests/property/broker/test_produce_fast_path.py and test_fetch_fast_path.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from logbus.waiting import PATIENCE_SECONDS

from benchmarks.peers.logbus import LogbusBroker
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.scraping import metrics_settings, scrape
from tests.support.topics import create_topic, read_partition, read_topic

RECORDS = 60
VALUE = b"x" * 100


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("broker"), settings=metrics_settings()) as running:
        yield running


class Share:
    """Requests received since this object was created."""

    def __init__(self, broker: LogbusBroker, request: str = "Produce") -> None:
        self._broker = broker
        self._label = f'{{request="{request}"}}'
        self._before = self._counts()

    def _counts(self) -> tuple[float, float]:
        found = scrape(self._broker)
        return (
            found[f"logbus_fast_path_requests_total{self._label}"],
            found[f"kafka_network_requestmetrics_requests_total{self._label}"],
        )

    def check(self) -> None:
        """Most requests took the fast path; not all, since the first for each partition and from each producer prime it."""
        (fast_path, all_), (fast_path_before, all_before) = self._counts(), self._before
        assert fast_path - fast_path_before > (all_ - all_before) / 2 > 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable.idempotence": True},
        {"acks": 1, "compression.type": "lz4"},
        {"compression.type": "zstd"},
        {"compression.type": "snappy"},
    ],
)
def test_librdkafka(ours: LogbusBroker, topic: str, settings: dict[str, Any]) -> None:
    create_topic(ours.bootstrap, topic)
    share = Share(ours)
    producer = Producer({"bootstrap.servers": ours.bootstrap, "linger.ms": 0, **settings})
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
        assert producer.flush(PATIENCE_SECONDS) == 0
    share.check()
    assert [message.value() for message in read_partition(ours.bootstrap, topic)] == [VALUE] * RECORDS


@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False, "compression_type": "gzip"}])
def test_kafka_python(ours: LogbusBroker, topic: str, settings: dict[str, Any]) -> None:
    create_topic(ours.bootstrap, topic)
    share = Share(ours)
    producer = KafkaProducer(bootstrap_servers=ours.bootstrap, **settings)
    offsets = [producer.send(topic, VALUE).get(PATIENCE_SECONDS).offset for _ in range(RECORDS)]
    producer.close()
    assert offsets == list(range(RECORDS))
    share.check()


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_aiokafka(ours: LogbusBroker, topic: str, is_idempotent: bool) -> None:
    create_topic(ours.bootstrap, topic)
    share = Share(ours)

    async def send() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=ours.bootstrap, enable_idempotence=is_idempotent) as producer:
            return [(await producer.send_and_wait(topic, VALUE)).offset for _ in range(RECORDS)]

    assert asyncio.run(send()) == list(range(RECORDS))
    share.check()


@pytest.mark.parametrize("properties", [(), ("acks=1", "batch.size=0", "linger.ms=0"), ("acks=all", "compression.type=snappy")])
def test_the_java_client_with_several_partitions_in_a_request(
    ours: LogbusBroker, topic: str, properties: tuple[str, ...]
) -> None:
    tools = jvm_tools_or_skip()
    create_topic(ours.bootstrap, topic, partitions=3)
    share = Share(ours)
    tools.producer_performance(ours.bootstrap, topic, records=20_000, record_bytes=200, properties=properties)
    share.check()
    assert sum(map(len, read_topic(ours.bootstrap, topic).values())) == 20_000


# Consumers: each reads one record at a time, as it arrives


def consumed(bootstrap: str, topic: str, poll: Callable[[], list[bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        seen: list[bytes] = []
        while not seen:
            seen = poll()
        assert seen == [b"%d" % number]


def test_librdkafka_consumes(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": ours.bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    share = Share(ours, "Fetch")
    consumed(ours.bootstrap, topic, lambda: [bytes(one.value() or b"") for one in consumer.consume(1, timeout=1)])
    share.check()
    consumer.close()


def test_kafka_python_consumes_several_partitions(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic, partitions=3)
    consumer = KafkaConsumer(bootstrap_servers=ours.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([KafkaPythonPartition(topic, index) for index in range(3)])
    share = Share(ours, "Fetch")
    consumed(ours.bootstrap, topic, lambda: [one.value for records in consumer.poll(timeout_ms=1000).values() for one in records])
    share.check()
    consumer.close()


@pytest.mark.long
def test_the_java_consumer_reads_the_past(ours: LogbusBroker, topic: str) -> None:
    tools = jvm_tools_or_skip()
    create_topic(ours.bootstrap, topic)
    tools.producer_performance(ours.bootstrap, topic, records=60_000, record_bytes=200)
    share = Share(ours, "Fetch")
    assert len(tools.console_consume(ours.bootstrap, topic, partition=0, count=60_000)) == 60_000
    share.check()
