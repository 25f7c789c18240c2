"""confluent-kafka's AdminClient, method by method, and the topics the broker refuses to create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker, LogbusBroker
from tests.support.topics import (
    admin,
    create_topic,
    delete_topic,
    partitions_of,
    read_partition,
)


def done(futures: Mapping[Any, Any]) -> Any:
    """The result of the only future."""
    (future,) = futures.values()
    return future.result(PATIENCE_SECONDS)


def configs(broker: AnyBroker, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    client = admin(broker.bootstrap)
    found: dict[str, ConfigEntry] = done(client.describe_configs([ConfigResource(kind, name)], request_timeout=PATIENCE_SECONDS))
    return found


def change(broker: AnyBroker, kind: ResourceType, name: str, *entries: ConfigEntry, **options: Any) -> None:
    resource, client = ConfigResource(kind, name, incremental_configs=list(entries)), admin(broker.bootstrap)
    done(client.incremental_alter_configs([resource], request_timeout=PATIENCE_SECONDS, **options))


def entry(name: str, value: str | None, operation: AlterConfigOpType = AlterConfigOpType.SET) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def node_of(broker: AnyBroker) -> str:
    return str(min(admin(broker.bootstrap).list_topics(timeout=PATIENCE_SECONDS).brokers))


def test_a_topic_grows_and_its_new_partitions_take_records(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    client = admin(broker.bootstrap)
    done(client.create_partitions([NewPartitions(topic, 3)], validate_only=True, request_timeout=PATIENCE_SECONDS))
    assert partitions_of(broker.bootstrap, topic) == [0]
    done(client.create_partitions([NewPartitions(topic, 3)], request_timeout=PATIENCE_SECONDS))
    assert partitions_of(broker.bootstrap, topic) == [0, 1, 2]
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"to the newest", partition=2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [message.value() for message in read_partition(broker.bootstrap, topic, 2)] == [b"to the newest"]
    with pytest.raises(KafkaException) as refused:
        done(client.create_partitions([NewPartitions(topic, 2)], request_timeout=PATIENCE_SECONDS))
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_a_topics_settings_are_changed_one_by_one(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, config={"retention.ms": "1000", "segment.bytes": "2097152"})
    change(
        broker,
        ResourceType.TOPIC,
        topic,
        entry("max.message.bytes", "500"),
        entry("retention.ms", None, AlterConfigOpType.DELETE),
    )
    change(broker, ResourceType.TOPIC, topic, entry("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    found = configs(broker, ResourceType.TOPIC, topic)
    assert (found["max.message.bytes"].value, found["segment.bytes"].value) == ("500", "2097152")
    assert found["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert found["cleanup.policy"].value == "delete,compact"
    assert list(found["max.message.bytes"].synonyms) == ["max.message.bytes", "message.max.bytes"]


def test_a_changed_setting_holds_for_the_next_record(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    change(broker, ResourceType.TOPIC, topic, entry("max.message.bytes", "500"))
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"x" * 1000, on_delivery=lambda error, message: refused.append(error))
    producer.flush(PATIENCE_SECONDS)
    assert [error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a deprecated method, but the only one older tools have
def test_all_settings_of_a_topic_are_replaced(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, config={"retention.ms": "1000"})
    client = admin(broker.bootstrap)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "2097152"})
    done(client.alter_configs([resource], request_timeout=PATIENCE_SECONDS))
    found = configs(broker, ResourceType.TOPIC, topic)
    assert (found["segment.bytes"].value, found["retention.ms"].source) == ("2097152", ConfigSource.DEFAULT_CONFIG.value)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (entry("no.such.setting", "1"), KafkaError.INVALID_CONFIG),
        (entry("retention.ms", "soon"), KafkaError.INVALID_CONFIG),
        (entry("retention.ms", "1", AlterConfigOpType.APPEND), KafkaError.INVALID_CONFIG),
    ],
    ids=["unknown", "invalid", "not a list"],
)
def test_a_setting_that_cannot_be_is_refused(broker: AnyBroker, topic: str, changed: ConfigEntry, code: int) -> None:
    create_topic(broker.bootstrap, topic)
    with pytest.raises(KafkaException) as refused:
        change(broker, ResourceType.TOPIC, topic, changed)
    assert refused.value.args[0].code() == code


def test_a_brokers_setting_holds_for_topics_that_do_not_say(broker: AnyBroker, topic: str) -> None:
    node = node_of(broker)
    create_topic(broker.bootstrap, topic)
    change(broker, ResourceType.BROKER, node, entry("log.flush.interval.messages", "777"))
    try:
        found = configs(broker, ResourceType.TOPIC, topic)["flush.messages"]
        assert (found.value, found.source) == ("777", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    finally:
        change(broker, ResourceType.BROKER, node, entry("log.flush.interval.messages", None, AlterConfigOpType.DELETE))
    with pytest.raises(KafkaException):
        change(broker, ResourceType.BROKER, node, entry("broker.id", "7"))


def test_the_cluster_is_described(broker: AnyBroker) -> None:
    client = admin(broker.bootstrap)
    cluster = client.describe_cluster(request_timeout=PATIENCE_SECONDS).result(PATIENCE_SECONDS)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("a/b", num_partitions=1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", num_partitions=1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("../../etc/x", num_partitions=1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, num_partitions=1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("many-replicas", num_partitions=1, replication_factor=3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("no-partitions", num_partitions=0), KafkaError.INVALID_PARTITIONS),
        (NewTopic("odd-setting", num_partitions=1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
    ids=["slash", "dots", "path", "too long", "replicas", "partitions", "setting"],
)
def test_a_topic_that_cannot_be_is_refused_and_leaves_nothing(broker: AnyBroker, wanted: NewTopic, code: int) -> None:
    client = admin(broker.bootstrap)
    with pytest.raises(KafkaException) as refused:
        done(client.create_topics([wanted], request_timeout=PATIENCE_SECONDS))
    assert refused.value.args[0].code() == code
    assert wanted.topic not in client.list_topics(timeout=PATIENCE_SECONDS).topics
    if isinstance(broker, LogbusBroker):
        assert not [path for path in broker.data.parent.rglob("*") if path.name.startswith(wanted.topic.rpartition("/")[2] + "-")]


def test_the_longest_name_is_taken_and_dots_count_as_underscores(broker: AnyBroker, topic: str) -> None:
    longest = (topic + "x" * 249)[:249]
    create_topic(broker.bootstrap, longest)
    delete_topic(broker.bootstrap, longest)
    create_topic(broker.bootstrap, f"{topic}.a_b")
    with pytest.raises(KafkaException) as refused:
        create_topic(broker.bootstrap, f"{topic}_a.b")
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    with pytest.raises(KafkaException) as refused:
        create_topic(broker.bootstrap, f"{topic}.a_b")
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
