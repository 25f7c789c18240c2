"""Reads single records here and there: the last one of a few offsets, of many partitions at once.

A boundary of a window is known again by the record before it. A catch-up of 84 hours asks for two such records a partition and
hour, so one consumer serves all of them: a client that starts costs more than what it reads. It takes little more than it is
asked for, and never waits long for more: the next question has to wait for a fetch that is under way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.kafka.client import Client
from logbus.kafka.exact_reader import CALL_SECONDS_MAX, CONSUMER_CONFIG, FINAL

SINGLE_CONFIG: Mapping[str, Any] = {
    **CONSUMER_CONFIG,
    "group.id": "logbus-single-records",
    "isolation.level": "read_uncommitted",  # a record is the same one whatever becomes of its transaction
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 5,
}

# What the broker says where it does not hold the offset at which a range begins.
NOT_THERE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class SingleRecords:
    """One broker or cluster, one consumer, made on first use, used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._consumer: Consumer | None = None

    def last(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Message]:
        """By partition the last record of the offsets [start, end); none where nothing lies there, or where the log does not hold
        `start`. `BrokerUnavailable` where the broker does not answer in time.

        What is not found is asked for once more: a client that came to a partition's end for one question was seen to tell of it
        when the next one was asked.
        """
        found = self._read(topic, ranges)
        return found | self._read(topic, {part: range_ for part, range_ in ranges.items() if part not in found})

    def _read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Message]:
        ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
        if not ends:
            return {}
        consumer, found = self._made_consumer(), dict[int, Message]()
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in ends])
        heard_at = time.monotonic()
        try:
            while ends:
                for message in consumer.consume(len(ends), timeout=CALL_SECONDS_MAX):
                    heard_at = time.monotonic()
                    if self._take(message, ends, found) and ends:  # or all behind it is read while the others are waited for
                        consumer.incremental_unassign([TopicPartition(topic, message.partition())])
                if time.monotonic() - heard_at > self.client.timeout_seconds:
                    raise self.client.unavailable(f"nothing came of {topic} for {self.client.timeout_seconds:g} s")
        finally:
            consumer.unassign()
        return found

    def _take(self, message: Message, ends: dict[int, int], found: dict[int, Message]) -> bool:
        """Keeps a record, and crosses its partition off once nothing later can lie in its range. Whether it did."""
        partition, offset, error = message.partition(), message.offset(), message.error()
        if partition not in ends or offset is None:
            return False
        if error is None:
            if offset < ends[partition]:
                found[partition] = message
            if offset + 1 >= ends[partition]:
                del ends[partition]
        elif error.code() == KafkaError._PARTITION_EOF or error.code() in NOT_THERE:
            del ends[partition]
        elif error.fatal() or error.code() in FINAL:
            raise self.client.explain(error, str(message.topic()), needs="Read")
        return partition not in ends

    def _made_consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self.client.consumer(SINGLE_CONFIG)
        return self._consumer
