"""Three broker processes on one ZooKeeper: losing one loses nothing acknowledged, and one that returns rejoins the ISR.

They log in at each other and at ZooKeeper, over TLS; what one of them has stored of users and ACLs all have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.cluster.topic_registry import AUDIT_PARTITIONS
from logbus_broker.security.state import AUDIT_TOPIC

from benchmarks.peers.authority import Authority
from tests.support.clusters import RunningCluster
from tests.support.ordeal import create_replicated
from tests.support.raw_client import limit
from tests.support.topics import delete_before, read_partition
from tests.support.zookeeper import RunningZooKeeper

TOPIC = "clicks"
PARTITIONS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    settings = {"offsets.topic.num.partitions": "3", "zookeeper.session.timeout.ms": "10000"}
    settings["logbus.audit.topic.enable"] = "true"
    authority = Authority(tmp_path)
    with (
        RunningZooKeeper(authority=authority) as zookeeper,
        RunningCluster(tmp_path, zookeeper, chroot="/three", settings=settings) as cluster,
    ):
        yield cluster


def send(cluster: RunningCluster, numbers: range, *, retries: int = 1_000) -> list[str]:
    """Sends numbers and waits for every answer; returns the errors of those that were not acknowledged."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "retries": retries})

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            errors.append(str(error))

    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return errors


def wait_until_each_broker_throttles(cluster: RunningCluster, client_id: str) -> None:
    """A quota is set at one, and each counts for itself."""
    create_replicated(cluster, "held-up", PARTITIONS)
    throttling: set[int] = set()
    settings = {"bootstrap.servers": cluster.bootstrap, "client.id": client_id, "message.timeout.ms": 3_600_000}
    producer = Producer({**settings, "throttle_cb": lambda event: throttling.add(event.broker_id)})

    def all_do() -> bool:
        for partition in range(PARTITIONS):
            producer.produce("held-up", bytes(5_000), partition=partition)
        producer.poll(0.2)
        return throttling >= set(cluster.brokers)

    wait_until(all_do, what="three brokers that hold the client up")
    producer.purge()


RULE = AclBinding(
    ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ, AclPermissionType.ALLOW
)
AUDITED = f"create ALLOW READ to User:ann from * on LITERAL TOPIC {TOPIC}"
EVERY_RULE = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def peer_admin(cluster: RunningCluster) -> AdminClient:
    """A client of the listener that brokers use, as their user."""
    settings = {
        "bootstrap.servers": f"127.0.0.1:{cluster.brokers[1].peer_port}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "broker",
        "sasl.password": cluster.password,
        "ssl.ca.location": cluster.brokers[1].settings["listener.name.peers.ssl.truststore.location"],
    }
    return AdminClient(settings)


def audited(cluster: RunningCluster) -> list[str]:
    """What was done, by whichever broker."""
    partitions = [read_partition(cluster.bootstrap, AUDIT_TOPIC, partition) for partition in range(AUDIT_PARTITIONS)]
    return [json.loads(message.value() or b"").get("what", "") for messages in partitions for message in messages]


def values(cluster: RunningCluster, partition: int, offset: int = 0) -> list[bytes | None]:
    return [message.value() for message in read_partition(cluster.bootstrap, TOPIC, partition, offset=offset)]


@pytest.mark.skipif(os.environ.get("LOGBUS_TEST_BROKER") == "kafka", reason="these are our processes")
def test_what_was_acknowledged_outlives_its_leader_and_too_few_replicas_acknowledge_nothing(cluster: RunningCluster) -> None:
    create_replicated(cluster, TOPIC, PARTITIONS)
    assert send(cluster, range(600)) == []
    limit(cluster.brokers[1].bootstrap, "slow", producer_byte_rate=1_000.0)
    wait_until_each_broker_throttles(cluster, "slow")
    admin = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap})
    admin.create_acls([RULE])[RULE].result(PATIENCE_SECONDS)
    wait_until(lambda: AUDITED in audited(cluster), what="the line about the ACL in the audit topic")
    assert set(peer_admin(cluster).list_topics(timeout=PATIENCE_SECONDS).brokers) == set(cluster.brokers)

    leader = cluster.brokers[cluster.state(TOPIC, 0).leader]
    leader.kill9()
    assert send(cluster, range(600, 1_200)) == []
    wait_until(
        lambda: all(leader.broker_id not in state.isr for state in cluster.states(TOPIC).values()), what="the dead one is out"
    )
    leader.start()
    cluster.wait_until_healed(TOPIC)
    for broker in cluster.brokers.values():
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert admin.describe_acls(EVERY_RULE).result(PATIENCE_SECONDS) == [RULE], "also at the one that was away"
    for partition in range(PARTITIONS):
        assert values(cluster, partition) == [b"%d" % number for number in range(partition, 1_200, PARTITIONS)]

    assert leader.stop() == 0, cluster.logs()
    assert send(cluster, range(1_200, 1_800)) == []
    leader.start()
    cluster.wait_until_healed(TOPIC)
    delete_before(cluster.bootstrap, TOPIC, 0, 50)

    others = [broker for broker in cluster.brokers.values() if broker is not leader]
    for broker in others:
        broker.kill9()
    alone = (leader.broker_id, (leader.broker_id,))
    wait_until(
        lambda: all((state.leader, state.isr) == alone for state in cluster.states(TOPIC).values()), what="the last one leads"
    )
    refused = send(cluster, range(3), retries=0)
    assert len(refused) == 3
    assert all("NOT_ENOUGH_REPLICAS" in error for error in refused), refused
    cluster.start(others)
    cluster.wait_until_healed(TOPIC)
    for partition in range(PARTITIONS):
        kept = [b"%d" % number for number in range(partition, 1_800, PARTITIONS)][50 if partition == 0 else 0 :]
        assert values(cluster, partition, offset=50 if partition == 0 else 0) == kept
    assert AUDITED in audited(cluster)
