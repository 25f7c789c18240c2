"""librdkafka consumer groups: every assignor, static members, and what survives a broker restart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import AnyBroker, LogbusBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS, GroupMember, poll_until, produce_numbers, shared_out
from tests.support.topics import admin, create_topic

COUNT = 20  # records in each partition


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


def everything(topic: str, partitions: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(partitions)}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_as_they_come_and_go(broker: AnyBroker, topic: str, strategy: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=4)
    settings = {"group": f"group-of-{topic}", "partition.assignment.strategy": strategy}
    members = [GroupMember(broker.bootstrap, [topic], **settings) for _ in range(2)]
    poll_until(lambda: shared_out(everything(topic, 4), *members), *members)
    members.append(GroupMember(broker.bootstrap, [topic], **settings))
    poll_until(lambda: shared_out(everything(topic, 4), *members), *members)
    sent = produce_numbers(broker.bootstrap, topic, 4, COUNT)
    poll_until(lambda: sum(sum(member.records.values()) for member in members) >= len(sent), *members)
    for member in members:
        assert {(name, index) for name, index, _ in member.records} <= member.assignment
    assert sum((member.records for member in members), start=type(members[0].records)()) == dict.fromkeys(sent, 1)
    members.pop(0).close()
    poll_until(lambda: shared_out(everything(topic, 4), *members), *members)
    for member in members:
        member.close()
    client = admin(broker.bootstrap)  # kept in a variable: pending futures fail when the client is collected

    def is_empty() -> bool:
        described = client.describe_consumer_groups([settings["group"]])[settings["group"]].result(PATIENCE_SECONDS)
        return (described.state, described.members) == (ConsumerGroupState.EMPTY, [])

    wait_until(is_empty, what="the empty group")


def test_each_group_sees_every_record(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    sent = produce_numbers(broker.bootstrap, topic, 2, COUNT)
    members = [GroupMember(broker.bootstrap, [topic], group=f"{name}-of-{topic}") for name in ("billing", "search")]
    poll_until(lambda: all(set(member.records) == sent for member in members), *members)
    assert [set(member.records) for member in members] == [sent, sent]
    for member in members:
        member.close()


def test_a_killed_members_partitions_go_to_the_others_when_its_session_is_over(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    group = f"group-of-{topic}"
    program = (
        "from confluent_kafka import Consumer\n"
        f"consumer = Consumer({{'bootstrap.servers': '{broker.bootstrap}', 'group.id': '{group}', 'session.timeout.ms': 1000, "
        "'heartbeat.interval.ms': 100})\n"
        f"consumer.subscribe(['{topic}'], on_assign=lambda consumer, partitions: print(len(partitions), flush=True))\n"
        "while True: consumer.poll(0.1)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"2\n"
        member = GroupMember(broker.bootstrap, [topic], group=group)
        poll_until(lambda: len(member.assignment) == 1, member)
    finally:
        other.kill()
        other.wait()
    poll_until(lambda: len(member.assignment) == 2, member)
    member.close()


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=4)
    group = f"group-of-{topic}"
    one = GroupMember(broker.bootstrap, [topic], group=group, group_instance_id="one")
    two = GroupMember(broker.bootstrap, [topic], group=group, group_instance_id="two")
    poll_until(lambda: shared_out(everything(topic, 4), one, two), one, two)
    owned, rebalances = two.assignment, one.assignments
    two.close()
    two = GroupMember(broker.bootstrap, [topic], group=group, group_instance_id="two")
    poll_until(lambda: two.assignment == owned, one, two)
    assert one.assignments == rebalances
    one.close()
    two.close()


def test_a_second_process_with_the_same_instance_id_fences_the_first(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    settings = {"group": f"group-of-{topic}", "group.instance.id": "one"}
    first = GroupMember(broker.bootstrap, [topic], **settings)
    poll_until(lambda: bool(first.assignment), first)
    second = GroupMember(broker.bootstrap, [topic], **settings)
    poll_until(lambda: bool(second.assignment) and bool(first.errors), first, second)
    assert {error.code() for error in first.errors} & {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}
    second.close()
    first.close()


def test_a_transactional_producer_is_told_at_once_that_there_are_no_transactions(tmp_path: Path) -> None:
    with LogbusBroker(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        with pytest.raises(KafkaException) as refusal:
            producer.init_transactions(PATIENCE_SECONDS)
    assert refusal.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refusal.value.args[0].fatal()


def committed(broker: AnyBroker, group: str, topic: str) -> tuple[int, str | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return found.offset, found.metadata


@pytest.mark.parametrize("end", ["restart", "kill -9"])
def test_a_group_goes_on_with_its_members_and_offsets_whatever_ended_the_broker(tmp_path: Path, end: str) -> None:
    """No member loses a partition, static or not; another process finds the offset and its metadata."""
    with LogbusBroker(tmp_path, settings=GROUP_SETTINGS) as broker:
        create_topic(broker.bootstrap, "clicks", partitions=4)
        settings = {"group": "g", "enable.auto.commit": False, "partition.assignment.strategy": "cooperative-sticky"}
        members = [GroupMember(broker.bootstrap, ["clicks"], **settings, **more) for more in ({}, {"group.instance.id": "one"})]
        poll_until(lambda: shared_out(everything("clicks", 4), *members), *members)
        sent = produce_numbers(broker.bootstrap, "clicks", 4, COUNT)  # only now: who is alone first would read all of it
        poll_until(lambda: sum(len(member.records) for member in members) == len(sent), *members)
        owned, rebalances = [member.assignment for member in members], [member.assignments for member in members]
        for member in members:
            member.commit()
        simple = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "simple"})
        simple.commit(offsets=[TopicPartition("clicks", 0, 7, "why")], asynchronous=False)
        simple.close()
        if end == "restart":
            broker.restart()
        else:
            broker.kill9()
            broker.start()
        assert committed(broker, "g", "clicks")[0] == COUNT
        assert committed(broker, "simple", "clicks") == (7, "why")
        produce_numbers(broker.bootstrap, "clicks", 4, 1)
        poll_until(lambda: sum(sum(member.records.values()) for member in members) == len(sent) + 4, *members)
        for member in members:
            member.commit()
        assert committed(broker, "g", "clicks")[0] == COUNT + 1
        assert [member.assignment for member in members] == owned
        assert [member.assignments for member in members] == rebalances
        for member in members:
            member.close()
