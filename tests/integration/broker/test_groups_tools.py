"""Consumer groups of command-line tools: kcat, and Apache Kafka's own tools where Java and Maven are installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS, GroupMember, poll_until, produce_numbers
from tests.support.kafka_peer import JvmTools, jvm_tools_or_skip
from tests.support.programs import program_or_skip
from tests.support.topics import create_topic

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
COUNT = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def tools() -> JvmTools:
    return jvm_tools_or_skip()


def committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return found.offset


def test_kcat_consumes_as_a_member_and_commits(broker: AnyBroker, topic: str) -> None:
    program = program_or_skip("kcat")
    create_topic(broker.bootstrap, topic)
    produce_numbers(broker.bootstrap, topic, 1, COUNT)
    command = [program, "-b", broker.bootstrap, "-G", "kcats", "-X", "auto.offset.reset=earliest", "-c", str(COUNT), "-q", topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert sorted(done.stdout.split()) == sorted(str(number) for number in range(COUNT))
    assert committed(broker.bootstrap, "kcats", topic) == COUNT


def test_the_console_consumer_and_the_group_tool_work_unmodified(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce_numbers(broker.bootstrap, topic, 1, COUNT)
    group = f"group-of-{topic}"

    def groups(*arguments: str) -> str:
        return tools.run(GROUP_COMMAND, "--bootstrap-server", broker.bootstrap, *arguments)

    wanted = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(COUNT), "--timeout-ms", "600000"]
    assert len(tools.run(CONSOLE_CONSUMER, "--bootstrap-server", broker.bootstrap, *wanted).splitlines()) == COUNT
    assert columns(groups("--describe", "--group", group), topic)[1:5] == ["0", str(COUNT), str(COUNT), "0"]
    groups("--group", group, "--reset-offsets", "--to-offset", "15", "--topic", topic, "--execute")
    member = GroupMember(broker.bootstrap, [topic], group=group, client_id="the-member")
    poll_until(lambda: len(member.records) == COUNT - 15, member)
    described = groups("--describe", "--group", group, "--members", "--verbose")
    assert all(shown in described for shown in ("the-member", "/127.0.0.1", f"{topic}:0"))
    assert "GroupNotEmptyException" in groups("--delete", "--group", group)
    member.close()
    groups("--group", group, "--delete-offsets", "--topic", topic)
    assert committed(broker.bootstrap, group, topic) < 0
    assert group in groups("--list", "--state").split()
    assert "successful" in groups("--delete", "--group", group)


def columns(table: str, topic: str) -> list[str]:
    """The topic's row, from its name on."""
    (row,) = [line.split() for line in table.splitlines() if topic in line.split()]
    return row[row.index(topic) :]


def test_the_verifiable_consumer_accounts_for_every_record(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce_numbers(broker.bootstrap, topic, 1, COUNT)
    group = f"group-of-{topic}"
    wanted = ["--topic", topic, "--group-id", group, "--reset-policy", "earliest", "--max-messages", str(COUNT)]
    events = tools.run(VERIFIABLE_CONSUMER, "--bootstrap-server", broker.bootstrap, *wanted)
    assert '"name":"partitions_assigned"' in events
    assert f'"count":{COUNT}' in events
    assert '"success":true' in events
    assert committed(broker.bootstrap, group, topic) == COUNT
