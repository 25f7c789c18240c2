"""A stock idempotent producer under which the broker is killed, and the proof that nothing acknowledged was lost."""

from __future__ import annotations

import random
import threading

from confluent_kafka import KafkaError, Message, Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import LogbusBroker
from tests.support.topics import create_topic, read_topic

PARTITIONS = 3
ACKNOWLEDGED_BETWEEN_KILLS = (1, 4_000)


class Sender:
    """Produces numbered records in its own thread and remembers every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        defaults = {
            "enable.idempotence": True,
            "acks": "all",
            "log_level": 0,  # hundreds of refused connections are intended here
            "linger.ms": 1,
            "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
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
            self._producer.poll(0 if number % 50 else 0.002)  # some ten thousand records a second leave CPU time for the rest
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition() or 0, message.offset() or 0] = message.value() or b""


def kill_under_load(broker: LogbusBroker, topic: str, rounds: int, seed: int) -> int:
    """kill -9 and restart, `rounds` times, under load; then every record sent must be stored once and in order, and every
    acknowledged one at the offset that its acknowledgement named. Returns how many were acknowledged."""
    chance = random.Random(seed)
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    with Sender(broker.bootstrap, topic) as sender:
        for _ in range(rounds):
            target = len(sender.acknowledged) + chance.randint(*ACKNOWLEDGED_BETWEEN_KILLS)
            wait_until(lambda: len(sender.acknowledged) >= target, what="the next acknowledged records")  # noqa: B023
            broker.kill9()
            broker.start()
    stored = read_topic(broker.bootstrap, topic)
    assert not sender.failures
    for partition, messages in stored.items():
        assert [message.offset() for message in messages] == list(range(len(messages)))
        assert [message.value() for message in messages] == sender.sent[partition]
    at_offset = {(partition, message.offset()): message.value() for partition, messages in stored.items() for message in messages}
    assert sender.acknowledged.items() <= at_offset.items()
    assert len(sender.acknowledged) > rounds
    return len(sender.acknowledged)
