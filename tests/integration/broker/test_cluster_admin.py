"""Stock admin clients manage topics, settings, reassignments and leaders through any of three broker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as PyTopicPartition
from logbus.cli import main
from logbus.errors import BrokerNotReady, ExitCode
from logbus.kafka.client import LATEST, Client
from logbus.kafka.cluster import ClusterFacts, cluster_facts
from logbus.kafka.topics import Topics
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.peers.logbus import LogbusBroker
from tests.support.clusters import RunningCluster
from tests.support.consumers import GroupMember, poll_until, produce_numbers, shared_out
from tests.support.scraping import metrics_settings
from tests.support.topics import create_topic, read_topic, send
from tests.support.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.skipif(os.environ.get("LOGBUS_TEST_BROKER") == "kafka", reason="these are our processes")

SETTINGS = {"offsets.topic.num.partitions": "3", "zookeeper.session.timeout.ms": "10000"}

Brokers = Mapping[int, LogbusBroker]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with RunningZooKeeper() as running:
        yield running


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, zookeeper: RunningZooKeeper) -> Iterator[Brokers]:
    cluster = RunningCluster(tmp_path_factory.mktemp("brokers"), zookeeper, settings=SETTINGS)
    cluster.brokers[1].settings |= metrics_settings()
    with cluster:
        yield cluster.brokers


def facts(broker: LogbusBroker) -> ClusterFacts:
    return cluster_facts(Client({"bootstrap.servers": broker.bootstrap}))


def answer_of(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_SECONDS)


@cache
def admin(broker: LogbusBroker) -> AdminClient:
    """Cached: a pending future fails when its client is garbage-collected."""
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def code(raised: pytest.ExceptionInfo[KafkaException]) -> str:
    return str(raised.value.args[0].name())


def partitions(broker: LogbusBroker, topic: str) -> dict[int, tuple[int | None, tuple[int, ...], tuple[int, ...]]]:
    rows = [row for row in facts(broker).partitions if row.topic == topic]
    return {row.partition: (row.leader, tuple(row.replicas), tuple(sorted(row.in_sync))) for row in rows}


def ran(broker: LogbusBroker, *words: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *words, "-b", broker.bootstrap], catch_exceptions=False)


def test_a_broker_is_drained_and_gets_its_share_again(brokers: Brokers, tmp_path: Path) -> None:
    """First: a topic with a replica on every broker would forbid it."""
    assignment = [[3, 1], [1, 2], [2, 3], [3, 2]]
    new = NewTopic("drained", 4, replica_assignment=assignment, config={"min.insync.replicas": "1"})
    answer_of(admin(brokers[1]).create_topics([new], operation_timeout=PATIENCE_SECONDS))
    send(brokers[1].bootstrap, "drained", [{"value": b"v" * 100_000}] * 20)
    wait_until(lambda: ran(brokers[1], "health").exit_code == 0, what="the in-sync sets")
    assert "ok: ZooKeeper: no complaint from broker 1\n" in ran(brokers[1], "health").stdout

    def held() -> list[tuple[int, ...]]:
        return [replicas for _, replicas, _ in partitions(brokers[2], "drained").values()]

    dry = ran(brokers[1], "drain", "3")
    assert (dry.exit_code, "dry run" in dry.stderr, held()) == (0, True, [tuple(row) for row in assignment])
    done = ran(brokers[1], "drain", "3", "--throttle", "100MB", "--execute", "--wait")
    assert (done.exit_code, "broker 3 has no replica any more" in done.stderr) == (0, True), done.stderr
    assert [set(row) for row in held()] == [{1, 2}] * 4
    assert "throttle removed: 3 brokers, 1 topic" in done.stderr
    assert "ok: throttles: none\n" in ran(brokers[1], "health").stdout

    assert ran(brokers[1], "plan", "--out", str(tmp_path / "plan.json")).exit_code == 0
    done = ran(brokers[2], "move", str(tmp_path / "plan.json"), "--execute", "--wait")
    assert done.exit_code == 0, done.stderr
    assert sorted(Counter(broker for row in held() for broker in row).values()) == [2, 3, 3]
    # Asked of the controller: what others know of an election may be a moment old.
    wait_until(
        lambda: all(leader == replicas[0] for leader, replicas, _ in partitions(brokers[1], "drained").values()),
        what="the preferred leaders",
    )
    assert "nothing to move" in ran(brokers[1], "plan").stderr

    answer_of(admin(brokers[1]).create_topics([NewTopic("wide", 1, 3)], operation_timeout=PATIENCE_SECONDS))
    refused = ran(brokers[1], "drain", "3", "--execute")
    assert (refused.exit_code, "too few brokers: 1, 2 would be left" in refused.stderr, "wide-0" in refused.stderr) == (
        1,
        True,
        True,
    )


def test_a_topic_is_made_at_one_broker_grown_at_another_and_deleted_at_the_third(brokers: Brokers) -> None:
    answer_of(
        admin(brokers[1]).create_topics(
            [NewTopic("life", 2, 3, config={"retention.ms": "77"})], operation_timeout=PATIENCE_SECONDS
        )
    )
    wait_until(lambda: len(partitions(brokers[2], "life")) == 2, what="the topic at another broker")
    answer_of(admin(brokers[2]).create_partitions([NewPartitions("life", 4)], operation_timeout=PATIENCE_SECONDS))
    wait_until(lambda: len(partitions(brokers[3], "life")) == 4, what="the growth at another broker")
    with pytest.raises(KafkaException) as raised:
        answer_of(admin(brokers[3]).create_topics([NewTopic("life", 1, 1)]))
    assert code(raised) == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(KafkaException) as raised:
        answer_of(admin(brokers[3]).create_topics([NewTopic("too-many", 1, 4)]))
    assert code(raised) == "INVALID_REPLICATION_FACTOR"
    answer_of(admin(brokers[3]).delete_topics(["life"], operation_timeout=PATIENCE_SECONDS))
    wait_until(lambda: all(not partitions(broker, "life") for broker in brokers.values()), what="the deletion everywhere")
    answer_of(admin(brokers[1]).create_topics([NewTopic("life", 1, 3)], operation_timeout=PATIENCE_SECONDS))


def test_a_partition_moves_to_another_broker_while_it_is_written(brokers: Brokers) -> None:
    client = KafkaAdminClient(bootstrap_servers=brokers[2].bootstrap)
    answer_of(
        admin(brokers[1]).create_topics([NewTopic("moved", 1, replica_assignment=[[1, 2]])], operation_timeout=PATIENCE_SECONDS)
    )
    wait_until(lambda: partitions(brokers[2], "moved").get(0, (0, (), ()))[2] == (1, 2), what="the in-sync set")
    producer = Producer({"bootstrap.servers": brokers[1].bootstrap, "acks": "all", "enable.idempotence": True})
    failed: list[str] = []
    for number in range(500):
        producer.produce("moved", b"%d" % number, on_delivery=lambda error, _: failed.append(str(error)) if error else None)
    client.alter_partition_reassignments({PyTopicPartition("moved", 0): [3, 2]})
    for number in range(500):
        producer.produce("moved", b"%d" % number, on_delivery=lambda error, _: failed.append(str(error)) if error else None)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []
    wait_until(lambda: partitions(brokers[3], "moved").get(0) == (3, (3, 2), (2, 3)), what="the move")
    wait_until(lambda: not client.list_partition_reassignments(), what="the move at the broker that is asked for moves")
    client.close()
    found = answer_of(admin(brokers[3]).list_offsets({TopicPartition("moved", 0): OffsetSpec.latest()}))
    assert found.offset == 1000


def change(broker: LogbusBroker, kind: ResourceType, name: str, **values: str | None) -> None:
    entries = [
        ConfigEntry(
            setting.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for setting, value in values.items()
    ]
    answer_of(admin(broker).incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_move_is_as_slow_as_its_throttle_and_goes_on_without(brokers: Brokers, side: str) -> None:
    topic, listed, rate = f"slow-{side}", f"{side}_replication_throttled_replicas", f"{side}_replication_throttled_rate"
    client = KafkaAdminClient(bootstrap_servers=brokers[2].bootstrap)
    new = NewTopic(topic, 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
    answer_of(admin(brokers[1]).create_topics([new], operation_timeout=PATIENCE_SECONDS))
    send(brokers[1].bootstrap, topic, [{"value": b"v" * 500_000}] * 8)
    change(brokers[2], ResourceType.TOPIC, topic, **{listed: "*"})
    for number in (1, 3):
        change(brokers[number], ResourceType.BROKER, str(number), **{rate: "1"})

    def copied() -> int:
        sizes = [directory.partition_bytes for directory in facts(brokers[1]).directories if directory.broker_id == 3]
        return sizes[0].get((topic, 0), 0)

    client.alter_partition_reassignments({PyTopicPartition(topic, 0): [3, 1]})
    wait_until(lambda: copied() > 0, what="the first records at the new replica")
    assert client.list_partition_reassignments(), "a byte a second"
    assert copied() < 4_000_000
    change(brokers[2], ResourceType.TOPIC, topic, **{listed: None})
    for number in (1, 3):
        change(brokers[number], ResourceType.BROKER, str(number), **{rate: None})
    wait_until(lambda: partitions(brokers[2], topic)[0] == (1, (3, 1), (1, 3)), what="the move")
    client.close()


def test_members_keep_their_partitions_when_their_coordinator_dies(brokers: Brokers) -> None:
    bootstrap, name = ",".join(broker.bootstrap for broker in brokers.values()), "shared"
    answer_of(admin(brokers[1]).create_topics([NewTopic(name, 4, 3)], operation_timeout=PATIENCE_SECONDS))
    members = [GroupMember(bootstrap, [name], group="sharing", enable_auto_commit=False) for _ in range(2)]
    everything = {(name, partition) for partition in range(4)}
    poll_until(lambda: shared_out(everything, *members), *members)
    owned, rebalances = [member.assignment for member in members], [member.assignments for member in members]
    asking = AdminClient({"bootstrap.servers": bootstrap})

    def coordinator() -> int:
        return int(answer_of(asking.describe_consumer_groups(["sharing"])).coordinator.id)

    dead = coordinator()
    brokers[dead].kill9()
    wait_until(lambda: coordinator() != dead, what="the next coordinator", not_yet=KafkaException)
    sent = produce_numbers(bootstrap, name, 4, 5)
    poll_until(lambda: set(members[0].records) | set(members[1].records) == sent, *members)
    for member in members:  # in their generation: another would refuse it
        wait_until(lambda member=member: member.commit() is None, what="a commit", not_yet=KafkaException)
    assert ([member.assignment for member in members], [member.assignments for member in members]) == (owned, rebalances)
    for member in members:
        member.close()
    brokers[dead].start()


def test_the_command_line_says_that_a_broker_is_missing(brokers: Brokers) -> None:
    lone = NewTopic("lone", 2, replica_assignment=[[2], [1]], config={"min.insync.replicas": "1"})
    answer_of(admin(brokers[1]).create_topics([lone], operation_timeout=PATIENCE_SECONDS))
    answer_of(admin(brokers[1]).create_topics([NewTopic("watched", 1, 3)], operation_timeout=PATIENCE_SECONDS))
    wait_until(lambda: partitions(brokers[1], "watched").get(0, (0, (), ()))[2] == (1, 2, 3), what="the in-sync set")

    def shown(*words: str) -> Result:
        return CliRunner().invoke(main, ["cluster", "-b", brokers[1].bootstrap, *words], catch_exceptions=False)

    wait_until(lambda: shown().exit_code == 0, what="the in-sync sets of what was made before")

    def brokers_shown() -> list[int]:
        return [broker["broker"] for broker in json.loads(shown("--json").stdout)["brokers"]]

    def broken() -> dict[str, bool]:
        found = json.loads(shown("--json").stdout)
        return {name: found[name] > 0 for name in ("under_replicated", "offline")}

    brokers[2].kill9()
    wait_until(lambda: shown().exit_code == ExitCode.CHECK_FAILED, what="the missing replica")
    wait_until(lambda: brokers_shown() == [1, 3], what="the missing broker")
    wait_until(lambda: broken() == {"under_replicated": True, "offline": True}, what="leaders for all that have other replicas")
    assert "error: broker 2 is gone" in shown().stderr
    checked = CliRunner().invoke(main, ["doctor", "--only", "cluster", "-b", brokers[1].bootstrap])
    assert (checked.exit_code, "lone-0" in checked.stdout) == (ExitCode.CHECK_FAILED, True)
    assert 'level=WARNING logger=broker.cluster message="broker 2 is gone: ' in brokers[1].log_path.read_text()
    topics = Topics(Client({"bootstrap.servers": brokers[1].bootstrap}, timeout_seconds=0.1))
    for asked_of in ([0], [0, 1]):
        with pytest.raises(BrokerNotReady, match="topic lone has no leader"):
            topics.end_offsets("lone", asked_of, LATEST)
    brokers[2].start()
    wait_until(lambda: shown().exit_code == 0, what="the replica that is back")


def join(broker: LogbusBroker, *words: str) -> str:
    settings = [word for name, value in broker.settings.items() for word in ("--override", f"{name}={value}")]
    command = [sys.executable, "-m", "logbus_broker", "join", *settings, "--override", f"log.dirs={broker.data}", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def values(broker: LogbusBroker, topic: str) -> dict[int, list[tuple[int | None, bytes | None]]]:
    """Offsets and values of each partition; a broker may learn a moment after ZooKeeper who leads."""

    def read() -> dict[int, list[tuple[int | None, bytes | None]]]:
        messages = read_topic(broker.bootstrap, topic)
        return {index: [(message.offset(), message.value()) for message in rows] for index, rows in messages.items()}

    return wait_until(read, what=f"leaders of {topic}", not_yet=KafkaException)


def committed(broker: LogbusBroker) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    offsets = consumer.committed([TopicPartition("old", 0), TopicPartition("old", 1)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return [offset.offset for offset in offsets]


def test_a_standalone_broker_grows_to_three_with_its_records_offsets_users_and_settings(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    grown = RunningCluster(tmp_path, zookeeper, chroot="/grown", settings={**SETTINGS, "min.insync.replicas": "1"})
    with LogbusBroker(grown.brokers[1].directory, settings={"broker.id": "1"}) as standalone:
        create_topic(standalone.bootstrap, "old", partitions=2, config={"retention.ms": "-1"})
        rows = [{"value": b"%d" % number, "partition": number % 2} for number in range(1_000)]
        send(standalone.bootstrap, "old", rows, {"enable.idempotence": True})
        consumer = Consumer({"bootstrap.servers": standalone.bootstrap, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("old", 0, 300), TopicPartition("old", 1, 400)], asynchronous=False)
        consumer.close()
        ann = UserScramCredentialUpsertion("ann", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
        answer_of(admin(standalone).alter_user_scram_credentials([ann]))
        change(standalone, ResourceType.BROKER, "1", log_retention_ms="777000")
        standalone.kill9()
        standalone.start()  # in a new epoch of each log
        before = values(standalone, "old")
        assert standalone.stop() == 0
        assert "       2 topics\n       3 partitions" in join(grown.brokers[1])
        assert "is the first of cluster" in join(grown.brokers[1], "--accept")
    with grown:
        first, second, third = grown.brokers.values()
        assert "may be lost" not in first.log_path.read_text()
        assert values(second, "old") == before
        assert committed(third) == [300, 400]
        assert list(admin(second).describe_user_scram_credentials(["ann"])) == ["ann"]
        (settings,) = admin(first).describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        assert settings.result(PATIENCE_SECONDS)["log.retention.ms"].value == "777000"
        (settings,) = admin(third).describe_configs([ConfigResource(ResourceType.TOPIC, "old")]).values()
        assert settings.result(PATIENCE_SECONDS)["retention.ms"].value == "-1"
        send(second.bootstrap, "old", [{"value": b"new", "partition": 0}], {"enable.idempotence": True})
        moves = [("old", 0), ("old", 1), ("__consumer_offsets", 0)]
        rows = [{"topic": topic, "partition": index, "replicas": [2, 3, 1]} for topic, index in moves]
        (tmp_path / "more.json").write_text(json.dumps({"version": 1, "partitions": rows}))
        done = ran(second, "move", str(tmp_path / "more.json"), "--execute", "--wait")
        assert done.exit_code == 0, done.stderr
        grown.wait_until_healed("old", "__consumer_offsets")
        assert first.stop() == 0  # it hands over what it leads
        after = values(second, "old")
        assert after[0][:-1] == before[0]
        assert (after[0][-1][1], after[1]) == (b"new", before[1])
        assert wait_until(lambda: committed(third), what="the coordinator", not_yet=KafkaException) == [300, 400]
