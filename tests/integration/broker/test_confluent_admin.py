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
    ResourceType,
)
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.topics import (
    admin,
    create_topic,
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a deprecated method, but the only one older tools have
def test_all_settings_of_a_topic_are_replaced(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, config={"retention.ms": "1000"})
    client = admin(broker.bootstrap)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "2097152"})
    done(client.alter_configs([resource], request_timeout=PATIENCE_SECONDS))
    found = configs(broker, ResourceType.TOPIC, topic)
    assert (found["segment.bytes"].value, found["retention.ms"].source) == ("2097152", ConfigSource.DEFAULT_CONFIG.value)


def test_the_cluster_is_described(broker: AnyBroker) -> None:
    client = admin(broker.bootstrap)
    cluster = client.describe_cluster(request_timeout=PATIENCE_SECONDS).result(PATIENCE_SECONDS)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
