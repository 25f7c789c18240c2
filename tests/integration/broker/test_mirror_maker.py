"""Apache Kafka's MirrorMaker 2, unmodified, between two brokers: ours, and ours with Apache Kafka's on either side
(docs/how-to/mirror.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from logbus.fingerprint import headers_of
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks import processes
from benchmarks.peers.java import FAST_START, KAFKA_VERSION
from benchmarks.peers.maven import Jars, Missing, java
from tests.support.broker import AnyBroker, LogbusBroker
from tests.support.kafka_peer import apache_kafka, kafka_peer  # noqa: F401
from tests.support.topics import create_topic, read_partition, read_topic, send

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "mirror.md"
JARS = Jars(
    name=f"kafka-mirror-{KAFKA_VERSION}",
    artifacts=(
        f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
PARTITIONS, RECORDS, READ = 3, 20_000, 1_000
GROUP, LIMIT = "readers", "max.message.bytes"
# Beside those of the page: one replica of everything, and no wait of a minute for what is seldom.
ONE_BROKER = (
    "replication.factor",
    *(f"{name}.topic.replication.factor" for name in ("offset-syncs", "checkpoints", "heartbeats")),
    *(f"{name}.storage.replication.factor" for name in ("offset", "status", "config")),
)
EVERY_SECOND = (
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.interval.seconds",
    "sync.topic.configs.interval.seconds",
)


def properties(source: AnyBroker, target: AnyBroker, topic: str) -> str:
    """Those of the page, with these brokers and this topic: of two lines with one name Java takes the later one."""
    (shown,) = re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    own = {"here.bootstrap.servers": source.bootstrap, "there.bootstrap.servers": target.bootstrap, "here->there.topics": topic}
    own |= dict.fromkeys((*ONE_BROKER, *EVERY_SECOND), "1")
    assert all(f"{name} = " in shown for name in list(own)[:3])
    return shown + "".join(f"{name} = {value}\n" for name, value in own.items())


@contextmanager
def mirror_maker(directory: Path, source: AnyBroker, target: AnyBroker, topic: str) -> Iterator[None]:
    try:
        command = [java(), "-Xmx512m", "-XX:+UseSerialGC", *FAST_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", JARS.class_path(), "org.apache.kafka.connect.mirror.MirrorMaker", str(directory / "mm2.properties")]
    except Missing as missing:
        pytest.skip(str(missing))
    (directory / "mm2.properties").write_text(properties(source, target, topic))
    process = processes.start(command, log_path=directory / "mm2.log", cwd=directory)
    try:
        yield
        assert process.poll() is None, (directory / "mm2.log").read_text()[-5000:]
    finally:
        processes.stop(process)


@pytest.fixture
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[AnyBroker, AnyBroker]]:
    """Where records are, and where they are to be as well."""
    with LogbusBroker(tmp_path / "first") as first:
        if request.param == "ours to ours":
            with LogbusBroker(tmp_path / "second") as second:
                yield first, second
        else:
            kafka: AnyBroker = request.getfixturevalue("apache_kafka")
            yield (kafka, first) if request.param == "Kafka's to ours" else (first, kafka)


def content(message: Message) -> tuple[object, ...]:
    return message.offset(), message.timestamp(), message.key(), message.value(), tuple(headers_of(message))


def mirrored(target: AnyBroker, topic: str) -> int:
    try:
        return sum(len(messages) for messages in read_topic(target.bootstrap, topic).values())
    except KeyError:  # it is not there yet
        return 0


def committed(broker: AnyBroker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    (position,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return int(position.offset)


@pytest.mark.long
@pytest.mark.parametrize("sides", ["ours to ours", "Kafka's to ours", "ours to Kafka's"], indirect=True)
def test_records_settings_and_groups_are_mirrored(sides: tuple[AnyBroker, AnyBroker], tmp_path: Path, topic: str) -> None:
    source, target = sides
    name, copy = f"mirrored-{topic}", f"here.mirrored-{topic}"
    create_topic(source.bootstrap, name, partitions=PARTITIONS, config={"retention.ms": "-1", LIMIT: "500000"})

    def produce(numbers: range) -> None:
        send(
            source.bootstrap,
            name,
            (
                {
                    "value": b"value %d" % number,
                    "key": None if number % 7 == 0 else b"%d" % number,
                    "partition": number % PARTITIONS,
                    "timestamp": 1_431_857_100_000 + number,
                    "headers": [("server", b"web%d" % number), ("server", None)] if number % 2 else None,
                }
                for number in numbers
            ),
        )

    produce(range(RECORDS))
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(name, 0, READ)], asynchronous=False)
    consumer.close()
    with mirror_maker(tmp_path, source, target, name):
        wait_until(lambda: mirrored(target, copy) == RECORDS, what="the copy", poll_seconds=1.0)
        produce(range(RECORDS, RECORDS + 300))
        wait_until(lambda: mirrored(target, copy) == RECORDS + 300, what="what came later", poll_seconds=1.0)
        wait_until(lambda: 0 < committed(target, copy) <= READ, what="the group, never ahead of where it was", poll_seconds=1.0)
        topics = Topics(Client.for_command({"bootstrap.servers": target.bootstrap}))
        wait_until(lambda: topics.settings(copy, [LIMIT]) == {LIMIT: "500000"}, what="settings", poll_seconds=1.0)
    originals, copies = (read_topic(broker.bootstrap, each) for broker, each in ((source, name), (target, copy)))
    assert originals.keys() == copies.keys()
    for partition, messages in originals.items():
        assert list(map(content, copies[partition])) == list(map(content, messages))
    assert read_partition(target.bootstrap, "heartbeats")
