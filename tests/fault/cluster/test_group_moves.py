"""A consumer group whose coordinator keeps dying and coming back: every commit acknowledged to a member is kept,
and every member continues from there.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from broker.coordination.group_places import OFFSETS_TOPIC, partition_of_group
from broker.protocol.api import ApiKey
from broker.protocol.control import request_class, response_class
from tests.support.clusters import RunningCluster
from tests.support.group_client import encode
from tests.support.ordeal import create_replicated
from tests.support.raw_client import RawClient
from tests.support.zookeeper import RunningZooKeeper

MOVES = 20  # half of them kill -9, half clean stops
PARTITIONS = 4
GROUP = "movers"
TOPIC = "moved"
OFFSET_FETCH_VERSION = 9


class Member:
    """One consumer in a separate thread, which commits what it has read and records the acknowledgements."""

    def __init__(self, bootstrap: str, acknowledged: dict[int, int], lock: threading.Lock) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # no member starts over: one that finds no committed offset fails
                "session.timeout.ms": 60_000,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "range",
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._acknowledged, self._lock = acknowledged, lock
        self.commits = 0
        self.tried: dict[int, int] = {}
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Member:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=self._assigned)
        while not self._is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self.problems.append(str(error))
                continue
            self._commit(message.partition(), message.offset() + 1)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The group's committed offset must be at least what any member had acknowledged before the partition came here."""
        with self._lock:
            known = dict(self._acknowledged)
        for place in self._patiently(partitions):
            if place.offset < known.get(place.partition, 0):
                self.problems.append(f"{place.partition}: {place.offset} is committed, {known[place.partition]} was acknowledged")
        consumer.assign(partitions)

    def _patiently(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        while True:
            try:
                return self._consumer.committed(partitions, timeout=PATIENCE_SECONDS)
            except KafkaException:  # the coordinator has moved, or has not loaded yet
                continue

    def _commit(self, partition: int, offset: int) -> None:
        self.tried[partition] = max(self.tried.get(partition, 0), offset)
        try:
            self._consumer.commit(offsets=[TopicPartition(TOPIC, partition, offset)], asynchronous=False)
        except KafkaException:  # it may still have been committed
            return
        self.commits += 1
        with self._lock:
            self._acknowledged[partition] = max(self._acknowledged.get(partition, 0), offset)


@pytest.mark.long
def test_what_a_group_has_committed_is_there_at_each_of_its_coordinators(zookeeper: RunningZooKeeper, tmp_path: Path) -> None:
    with RunningCluster(tmp_path, zookeeper, chroot="/groups") as cluster:
        create_replicated(cluster, TOPIC, PARTITIONS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        acknowledged: dict[int, int] = {}
        commit(cluster, dict.fromkeys(range(PARTITIONS), 0))  # so no member ever finds nothing committed
        acknowledged.update(dict.fromkeys(range(PARTITIONS), 0))
        place = partition_of_group(GROUP, len(cluster.assignment(OFFSETS_TOPIC)))
        cluster.wait_until_healed(TOPIC, OFFSETS_TOPIC)
        lock = threading.Lock()
        stop = threading.Event()

        def produce() -> None:
            number = 0
            while not stop.is_set():
                producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                number += 1
                producer.poll(0)
                time.sleep(0.005)
            producer.flush(PATIENCE_SECONDS)

        feeding = threading.Thread(target=produce)
        feeding.start()
        members = [Member(cluster.bootstrap, acknowledged, lock) for _ in range(2)]
        try:
            with members[0], members[1]:
                for move in range(MOVES):
                    broker = cluster.brokers[cluster.state(OFFSETS_TOPIC, place).leader]
                    before = sum(member.commits for member in members)
                    if move % 2:
                        assert broker.stop() == 0
                    else:
                        broker.kill9()
                    broker.start()
                    cluster.wait_until_healed(TOPIC, OFFSETS_TOPIC)
                    wait_until(lambda: sum(member.commits for member in members) > before, what="a commit")  # noqa: B023
        finally:
            stop.set()
            feeding.join()
        assert [member.problems for member in members] == [[], []]
        left = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
        committed = {
            one.partition: one.offset
            for one in left.committed([TopicPartition(TOPIC, n) for n in range(PARTITIONS)], timeout=PATIENCE_SECONDS)
        }
        left.close()
        tried = {n: max(member.tried.get(n, 0) for member in members) for n in range(PARTITIONS)}
        for partition, offset in committed.items():
            assert acknowledged[partition] <= offset <= tried[partition]


@pytest.mark.long
def test_a_coordinator_that_was_stopped_does_not_answer_from_memory(zookeeper: RunningZooKeeper, tmp_path: Path) -> None:
    """The request is already in its socket when it resumes, and one minute is long enough to trust its leadership."""
    with RunningCluster(tmp_path, zookeeper, chroot="/stopped", settings={"logbus.leader.confirm.ms": "60000"}) as cluster:
        create_replicated(cluster, TOPIC, 1)
        commit(cluster, {0: 1})
        place = partition_of_group(GROUP, len(cluster.assignment(OFFSETS_TOPIC)))
        cluster.wait_until_healed(TOPIC, OFFSETS_TOPIC)
        stopped = cluster.state(OFFSETS_TOPIC, place).leader
        with RawClient(cluster.brokers[stopped].bootstrap) as asking:
            cluster.brokers[stopped].pause()
            commit(cluster, {0: 2})
            assert cluster.state(OFFSETS_TOPIC, place).leader != stopped
            ask_what_is_committed(asking)
            cluster.brokers[stopped].resume()
            assert told(asking) != (0, 1)


def ask_what_is_committed(connection: RawClient) -> None:
    row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    topics = [row.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
    asked = row(group_id=GROUP, member_id=None, member_epoch=-1, topics=topics)
    body = encode(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, {"groups": [asked], "require_stable": True})
    connection.send_request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, body, flexible=True)


def told(connection: RawClient) -> tuple[int, int | None]:
    """The error, and the offset."""
    raw = connection.receive_frame()[5:]
    (group,) = response_class(ApiKey.OFFSET_FETCH).decode(raw, version=OFFSET_FETCH_VERSION).groups
    return group.error_code, group.topics[0].partitions[0].committed_offset if group.topics else None


def commit(cluster: RunningCluster, offsets: dict[int, int]) -> None:
    """Commit from outside the group, until it is acknowledged."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    places = [TopicPartition(TOPIC, partition, offset) for partition, offset in offsets.items()]
    wait_until(lambda: consumer.commit(offsets=places, asynchronous=False), what="the group coordinator", not_yet=KafkaException)
    consumer.close()
