"""kafka-python, a second implementation of the protocol, in a language other than librdkafka's."""

from __future__ import annotations

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
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


def test_an_idempotent_producer_may_be_the_default(broker: AnyBroker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True, compression_type="gzip")
    sent = [producer.send(topic, b"%d" % number, partition=0) for number in range(1000)]
    producer.flush(PATIENCE_SECONDS)
    assert [future.get(PATIENCE_SECONDS).offset for future in sent] == list(range(1000))
    producer.close()
