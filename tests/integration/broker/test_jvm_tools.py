"""Apache Kafka's own command-line tools, where Java and Maven are there."""

from __future__ import annotations

import pytest

from tests.support.broker import AnyBroker
from tests.support.kafka_peer import JvmTools, jvm_tools_or_skip


@pytest.fixture(scope="module")
def tools() -> JvmTools:
    return jvm_tools_or_skip()


def test_a_topic_is_made_described_and_listed(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    tools.topics(broker.bootstrap, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=-1")
    assert topic in tools.topics(broker.bootstrap, "--list").split()
    described = tools.topics(broker.bootstrap, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=-1" in described


def test_the_console_tools_produce_idempotently_and_consume_by_assignment(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    lines = [f"line {number}" for number in range(500)]
    tools.topics(broker.bootstrap, "--create", "--topic", topic, "--partitions", "1")
    tools.console_produce(broker.bootstrap, topic, lines, "acks=all", "enable.idempotence=true", "compression.type=zstd")
    assert tools.console_consume(broker.bootstrap, topic, partition=0, count=500) == lines
    assert tools.end_offsets(broker.bootstrap, topic) == {0: 500}
    assert tools.end_offsets(broker.bootstrap, topic, time="earliest") == {0: 0}


def test_the_performance_tool_finishes(tools: JvmTools, broker: AnyBroker, topic: str) -> None:
    tools.topics(broker.bootstrap, "--create", "--topic", topic, "--partitions", "1")
    summary = tools.producer_performance(broker.bootstrap, topic, records=20_000, record_bytes=200, properties=["acks=1"])
    assert summary.startswith("20000 records sent")
    assert tools.end_offsets(broker.bootstrap, topic) == {0: 20_000}
