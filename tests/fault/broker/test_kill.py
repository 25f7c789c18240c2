"""kill -9 of the broker under a stock idempotent producer: what was acknowledged is there, once, in order.

The producer is never told: it retries through every restart, as an application's would. The seed decides when the broker dies.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.processes import wait_until
from tests.support.broker import LogbusBroker
from tests.support.topics import create_topic, read_topic

ROUNDS = int(os.environ.get("LOGBUS_FAULT_ROUNDS", "10"))
PARTITIONS = 3
ACKNOWLEDGED_BETWEEN_KILLS = (1, 4_000)
DEADLINE_SECONDS = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker", settings={"log.segment.bytes": "300000"}) as running:  # so that kills hit rolls too
        yield running


class Sender:
    """Produces numbered records from a thread of its own and remembers every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        defaults = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 200,
        }
        self._producer = Producer({"bootstrap.servers": bootstrap, **defaults, **settings})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self.failures: list[KafkaError] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._stop.is_set():
            partition, value = number % PARTITIONS, b"%012d" % number + b"." * (number % 97)
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._note)
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.sent[partition].append(value)
            number += 1
            self._producer.poll(0 if number % 50 else 0.002)  # a few ten thousand records a second leave room for the rest
        assert self._producer.flush(DEADLINE_SECONDS) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition() or 0, message.offset() or 0] = message.value() or b""


def test_what_was_acknowledged_is_there_once_and_in_order_after_many_kills(broker: LogbusBroker) -> None:
    chance = random.Random(2011)
    create_topic(broker.bootstrap, "killed", partitions=PARTITIONS)
    with Sender(broker.bootstrap, "killed") as sender:
        for _ in range(ROUNDS):
            target = len(sender.acknowledged) + chance.randint(*ACKNOWLEDGED_BETWEEN_KILLS)
            assert wait_until(lambda: len(sender.acknowledged) >= target, deadline_seconds=DEADLINE_SECONDS)  # noqa: B023
            broker.kill9()
            broker.start()
    stored = read_topic(broker.bootstrap, "killed")
    assert not sender.failures
    for partition, messages in stored.items():
        assert [message.offset() for message in messages] == list(range(len(messages)))
        assert [message.value() for message in messages] == sender.sent[partition]
    at_offset = {(partition, message.offset()): message.value() for partition, messages in stored.items() for message in messages}
    assert sender.acknowledged.items() <= at_offset.items()
    assert len(sender.acknowledged) > ROUNDS


def test_compressed_batches_survive_kills_as_well(broker: LogbusBroker) -> None:
    create_topic(broker.bootstrap, "packed", partitions=PARTITIONS)
    with Sender(broker.bootstrap, "packed", **{"compression.type": "zstd"}) as sender:
        for target in (500, 3_000):
            assert wait_until(lambda: len(sender.acknowledged) >= target, deadline_seconds=DEADLINE_SECONDS)  # noqa: B023
            broker.kill9()
            broker.start()
    for partition, messages in read_topic(broker.bootstrap, "packed").items():
        assert [message.value() for message in messages] == sender.sent[partition]


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "flipped"])
def test_a_torn_tail_is_removed_and_everything_before_it_kept(broker: LogbusBroker, damage: str) -> None:
    """The last batch as a power cut may leave it. What was stored before it stays, and the broker takes records again."""
    create_topic(broker.bootstrap, "torn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for number in range(20):
        producer.produce("torn", b"%d" % number, partition=0)
        assert producer.flush(DEADLINE_SECONDS) == 0
    broker.kill9()
    expected = [b"%d" % number for number in range(_damage(broker.data / "torn-0", damage))]
    broker.start()
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == expected
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("torn", b"after", partition=0)
    assert plain.flush(DEADLINE_SECONDS) == 0
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == [*expected, b"after"]


def _damage(directory: Path, damage: str) -> int:
    """Spoil the end of the partition's last segment; how many of the 20 records are then still whole."""
    segment = max(directory.glob("*.log"))
    content = segment.read_bytes()
    if damage in ("zeros", "garbage"):
        segment.write_bytes(content + (b"\0" if damage == "zeros" else b"\xa5\x5a\x00\x01") * 100)
        return 20
    segment.write_bytes(content[:-3] if damage == "cut" else content[:-3] + bytes([content[-3] ^ 0xFF]) + content[-2:])
    return 19
