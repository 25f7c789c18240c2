"""Three broker processes on one ZooKeeper: losing one loses nothing acknowledged, and one that returns rejoins the ISR."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from logbus.local.processes import ReservedPorts
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.clusters import wait_until_all_see
from tests.support.zookeeper import RunningZooKeeper

TOPIC = "clicks"
PARTITIONS = 3
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "zookeeper.session.timeout.ms": "10000",
}


class Brokers:
    """Three brokers; each can be killed, shut down cleanly and started again."""

    def __init__(self, directory: Path, connect: str, ports: list[int]) -> None:
        self._directory = directory
        self._connect = connect
        self._ports = dict(enumerate(ports, 1))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            settings = {
                "broker.id": str(broker_id),
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}",
                "log.dirs": str(self._directory / str(broker_id)),
                "zookeeper.connect": self._connect,
                **SETTINGS,
            }
            overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
            with self.log(broker_id).open("ab") as log:
                command = [sys.executable, "-m", "broker", "serve", *overrides]
                self._processes[broker_id] = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self, broker_id: int) -> Path:
        return self._directory / f"{broker_id}.log"

    def kill(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self._processes[broker_id].kill()
        for broker_id in broker_ids:
            self._processes.pop(broker_id).wait()

    def stop(self, broker_id: int) -> int:
        process = self._processes.pop(broker_id)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.kill(*self._processes)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(RunningZooKeeper())
        ports = ReservedPorts(3)
        stack.callback(ports.release)
        running = Brokers(tmp_path, f"{zookeeper.connect}/three", list(ports.numbers))
        stack.callback(running.close)
        running.start(1, 2, 3)
        yield running


class Acknowledged:
    """Sends numbers; records which are acknowledged, and the errors of the others."""

    def __init__(self, bootstrap: str, *, retries: int = 1_000) -> None:
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                "retries": retries,
            }
        )

    def send(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            value = b"%d" % number
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.values.append(value)
        else:
            self.errors.append(str(error))


def _states(admin: AdminClient) -> dict[int, tuple[int, list[int]]]:
    """Leader and in-sync replicas of every partition: none where the broker asked does not know them yet, or no longer does."""
    try:
        partitions = admin.list_topics(TOPIC, timeout=3).topics[TOPIC].partitions
    except KafkaException:  # librdkafka leaves the request with a broker that has just died
        partitions = {}
    states = {index: (row.leader, sorted(row.isrs)) for index, row in partitions.items()}
    nobody = (-1, list[int]())
    return {index: states.get(index, nobody) for index in range(PARTITIONS)}


def _read_all(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    values: list[bytes] = []

    def are_all_read() -> bool:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None
            value = message.value()
            assert value is not None
            values.append(value)
        return len(values) >= count

    wait_until(are_all_read, what=f"{count} records", poll_seconds=0)
    consumer.close()
    return values


@pytest.mark.skipif(os.environ.get("LOGBUS_TEST_BROKER") == "kafka", reason="these are our processes")
def test_what_was_acknowledged_outlives_its_leader_and_too_few_replicas_acknowledge_nothing(brokers: Brokers) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    wait_until_all_see(3, brokers.bootstrap.split(","))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE_SECONDS)
    sent = Acknowledged(brokers.bootstrap)
    sent.send(0, 600)

    wait_until(lambda: _states(admin)[0][0] in (1, 2, 3), what="a leader")
    leader, _ = _states(admin)[0]
    brokers.kill(leader)
    sent.send(600, 600)
    assert (len(sent.values), sent.errors) == (1200, [])
    wait_until(lambda: all(isr and leader not in isr for _, isr in _states(admin).values()), what="the dead one is out")

    brokers.start(leader)
    wait_until(lambda: all(isr == [1, 2, 3] for _, isr in _states(admin).values()), what="the dead one is back in sync")
    assert sorted(_read_all(brokers.bootstrap, 1200), key=int) == [b"%d" % number for number in range(1200)]

    others = [broker for broker in (1, 2, 3) if broker != leader]
    assert brokers.stop(leader) == 0, brokers.log(leader).read_text()
    sent.send(1200, 600)
    assert (len(sent.values), sent.errors) == (1800, [])
    brokers.start(leader)
    wait_until(lambda: all(isr == [1, 2, 3] for _, isr in _states(admin).values()), what="all are in sync")

    (deleted,) = admin.delete_records([TopicPartition(TOPIC, 0, 50)]).values()
    assert deleted.result(PATIENCE_SECONDS).low_watermark == 50

    brokers.kill(*others)
    wait_until(lambda: all(state == (leader, [leader]) for state in _states(admin).values()), what="the last one leads")
    refused = Acknowledged(brokers.bootstrap, retries=0)
    refused.send(0, 3)
    assert refused.values == []
    assert all("NOT_ENOUGH_REPLICAS" in error for error in refused.errors), refused.errors
    brokers.start(*others)
    wait_until(lambda: all(isr == [1, 2, 3] for _, isr in _states(admin).values()), what="all are in sync")
    left = [b"%d" % number for number in range(1800) if number % PARTITIONS or number >= 50 * PARTITIONS]
    assert sorted(set(_read_all(brokers.bootstrap, len(left))), key=int) == left
