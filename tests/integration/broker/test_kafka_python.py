"""kafka-python, a second implementation of the protocol, in a language other than librdkafka's."""

from __future__ import annotations

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker


def test_it_makes_a_topic_produces_and_consumes_by_assignment(broker: AnyBroker, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic(topic, 2, 1)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", compression_type="gzip")
    sent = [producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=1_000 + number) for number in range(100)]
    producer.flush(PATIENCE_SECONDS)
    assert [future.get(PATIENCE_SECONDS).offset for future in sent] == [number // 2 for number in range(100)]
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, enable_auto_commit=False, consumer_timeout_ms=PATIENCE_SECONDS * 1000
    )
    partition = TopicPartition(topic, 1)
    consumer.assign([partition])
    consumer.seek(partition, 10)
    found = [next(consumer).value for _ in range(40)]
    assert found == [b"%d" % number for number in range(21, 100, 2)]
    assert consumer.end_offsets([partition]) == {partition: 50}
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    at = consumer.offsets_for_times({partition: 1_050})[partition]
    assert (at.offset, at.timestamp) == (25, 1_051)
    consumer.close()
    admin.delete_topics([topic])
    admin.close()


def test_it_administers_topics_and_their_settings(broker: AnyBroker, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "1000"}}})
    admin.create_partitions({topic: 3})
    (described,) = admin.describe_topics([topic])
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": ("SET", "2000")})
    admin.alter_configs([resource])
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")["topic"][topic]
    assert found["retention.ms"]["value"] == "2000"
    assert topic in admin.list_config_resources(["TOPIC"])["topic"]
    (node,) = admin.describe_log_dirs({topic: [0, 1, 2]})
    assert {
        part["partition_index"] for directory in node["log_dirs"] for one in directory["topics"] for part in one["partitions"]
    } == {0, 1, 2}
    assert admin.list_partition_reassignments() == {}
    assert len(admin.describe_topic_partitions([topic])["topics"][0]["partitions"]) == 3
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def test_an_idempotent_producer_may_be_the_default(broker: AnyBroker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True, compression_type="gzip")
    sent = [producer.send(topic, b"%d" % number, partition=0) for number in range(1000)]
    producer.flush(PATIENCE_SECONDS)
    assert [future.get(PATIENCE_SECONDS).offset for future in sent] == list(range(1000))
    producer.close()
