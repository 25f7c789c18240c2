"""confluent-kafka (librdkafka), the pipeline's own client, unmodified and with default settings."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import AnyBroker
from tests.support.topics import admin, create_topic, offset_of, read_partition, read_topic

BASE_MS = 1_431_857_103_000


def produce(
    broker: AnyBroker, topic: str, values: list[bytes], *, timestamps: list[int] | None = None, **settings: object
) -> list[Message]:
    """Produce to partition 0; returns the delivery reports."""
    reports: list[Message] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number, value in enumerate(values):
        stamp = timestamps[number] if timestamps else BASE_MS + number
        producer.produce(
            topic, value, key=b"key", partition=0, timestamp=stamp, headers=[("n", b"%d" % number)], on_delivery=note
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    return reports


@pytest.mark.parametrize("settings", [{"enable.idempotence": True}, {"acks": "1"}, {"acks": "all"}], ids=str)
def test_records_come_back_as_they_were_sent(broker: AnyBroker, topic: str, settings: dict[str, object]) -> None:
    create_topic(broker.bootstrap, topic)
    values = [b"value %d" % number for number in range(1000)]
    reports = produce(broker, topic, values, **settings)
    assert [report.offset() for report in reports] == list(range(1000))
    messages = read_partition(broker.bootstrap, topic)
    assert [message.value() for message in messages] == values
    assert [message.timestamp()[1] for message in messages] == [BASE_MS + number for number in range(1000)]
    assert messages[7].headers() == [("n", b"7")]
    assert messages[7].key() == b"key"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_stored_as_sent(broker: AnyBroker, topic: str, codec: str) -> None:
    create_topic(broker.bootstrap, topic)
    values = [b"the same words again and again, number %d" % number for number in range(2000)]
    produce(broker, topic, values, **{"compression.type": codec, "linger.ms": 100})
    assert [message.value() for message in read_partition(broker.bootstrap, topic)] == values
    assert [message.value() for message in read_partition(broker.bootstrap, topic, offset=1234)] == values[1234:]


def test_a_record_of_nearly_the_limit_passes_and_one_beyond_is_refused(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, [b"x" * 1_000_000], **{"message.max.bytes": 2_000_000})
    refused: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 3_000_000})
    producer.produce(topic, b"y" * 2_000_000, partition=0, on_delivery=lambda error, message: refused.append(error))
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [error.code() for error in refused if error] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert [len(message.value() or b"") for message in read_partition(broker.bootstrap, topic)] == [1_000_000]


def test_producing_to_a_topic_that_does_not_exist_makes_it(broker: AnyBroker, topic: str) -> None:
    produce(broker, topic, [b"first"])
    assert [message.value() for message in read_topic(broker.bootstrap, topic)[0]] == [b"first"]


def test_earliest_latest_and_watermarks_agree(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, [b"x"] * 10)
    assert offset_of(broker.bootstrap, topic, 0, OffsetSpec.earliest()) == 0
    wait_until(lambda: offset_of(broker.bootstrap, topic, 0, OffsetSpec.latest()) == 10, what="the ten records")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS) == (0, 10)
    found = consumer.offsets_for_times([TopicPartition(topic, 0, BASE_MS + 5)], timeout=PATIENCE_SECONDS)
    assert [one.offset for one in found] == [5]
    consumer.close()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_record_with_the_largest_timestamp_is_found(broker: AnyBroker, topic: str, codec: str) -> None:
    create_topic(broker.bootstrap, topic)
    stamps = [BASE_MS + shift for shift in (0, 50, 90, 10, 90, 60)]
    produce(broker, topic, [b"x"] * len(stamps), timestamps=stamps, **{"compression.type": codec, "linger.ms": 200})
    assert offset_of(broker.bootstrap, topic, 0, OffsetSpec.max_timestamp()) == 2


def test_deleted_records_move_the_start(broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    produce(broker, topic, [b"%d" % number for number in range(10)])
    client = admin(broker.bootstrap)
    wanted = TopicPartition(topic, 0, 4)
    wait_until(lambda: offset_of(broker.bootstrap, topic, 0, OffsetSpec.latest()) == 10, what="the ten records")
    client.delete_records([wanted], request_timeout=PATIENCE_SECONDS)[wanted].result(PATIENCE_SECONDS)
    assert offset_of(broker.bootstrap, topic, 0, OffsetSpec.earliest()) == 4
    assert [message.value() for message in read_partition(broker.bootstrap, topic, offset=4)] == [
        b"%d" % number for number in range(4, 10)
    ]
