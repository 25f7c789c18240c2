"""The leader epoch rises with a start after a crash; consumers that were reading ask where their epoch ended, and read on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import ApiKey

from benchmarks.peers.logbus import LogbusBroker
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.protocol_page import claims
from tests.support.recording_proxy import RecordingProxy
from tests.support.topics import create_topic

TOPIC = "epochs"


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy() as proxy:
        yield proxy


@pytest.fixture
def broker(proxy: RecordingProxy, tmp_path: Path) -> Iterator[LogbusBroker]:
    """A broker that advertises the proxy's address, with one record."""
    with LogbusBroker(tmp_path, settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}) as broker:
        proxy.target_port = broker.port
        create_topic(f"127.0.0.1:{proxy.port}", TOPIC)
        produce(proxy, b"before")
        yield broker


def produce(proxy: RecordingProxy, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{proxy.port}"})
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def crash(broker: LogbusBroker, proxy: RecordingProxy) -> None:
    broker.kill9()
    proxy.take()
    broker.start()


def spoken(proxy: RecordingProxy) -> set[int]:
    return proxy.sent[ApiKey.OFFSET_FOR_LEADER_EPOCH]


def claimed(client: str) -> set[int]:
    """The versions in which, per docs/protocol-support.md, it asks."""
    return {version for key, version in claims()[client] if key == ApiKey.OFFSET_FOR_LEADER_EPOCH}


def test_librdkafka_asks_where_its_epoch_ended_and_reads_on(broker: LogbusBroker, proxy: RecordingProxy) -> None:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{proxy.port}", "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    assert consumer.poll(PATIENCE_SECONDS).value() == b"before"
    crash(broker, proxy)
    produce(proxy, b"after")
    found = next(message for message in iter(lambda: consumer.poll(PATIENCE_SECONDS), None) if message.error() is None)
    consumer.close()
    assert (found.value(), found.offset(), found.leader_epoch()) == (b"after", 1, 1)
    assert spoken(proxy) == claimed("confluent-kafka")


def test_the_jvm_consumer_asks_where_its_epoch_ended_and_reads_on(broker: LogbusBroker, proxy: RecordingProxy) -> None:
    at = ("--bootstrap-server", f"127.0.0.1:{proxy.port}", "--topic", TOPIC, "--partition", "0", "--offset", "earliest")
    console = jvm_tools_or_skip().command("org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--max-messages", "2")
    with subprocess.Popen(console, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"before\n"
            crash(broker, proxy)
            produce(proxy, b"after")
            assert process.stdout.readline() == b"after\n"
        finally:
            process.kill()
    assert spoken(proxy) == claimed("JVM")
