"""What shipping needs from its topic: find or create it, where it ends, what it holds.

A broker that has answered before is given time to come back, as the producer does: a restart during a run costs time and nothing
else. One that is away and never answered fails the run at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.fingerprint import headers_of
from logbus.kafka.client import ANSWER_SECONDS_MAX, LATEST, Client
from logbus.kafka.producing import DELIVERY_SECONDS_MAX
from logbus.kafka.topics import Topics
from logbus.waiting import Say, announced, say_nothing

TIMEOUT_SECONDS = 15.0  # between two attempts while the broker is away
POLL_SECONDS = 1.0
POSITION_HEADER = "position"

READING: Mapping[str, Any] = {
    "group.id": "logbus-ship",  # required by the client, never joined: partitions are assigned
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": LATEST,
    "auto.offset.reset": "earliest",  # retention may have passed the last checkpoint
}


class TopicClient:
    """One topic of one cluster."""

    def __init__(self, topic: str, client_config: Mapping[str, Any], say: Say = say_nothing) -> None:
        self.topic = topic
        self._client = Client(
            client_config,
            timeout_seconds=TIMEOUT_SECONDS,
            away_seconds_max=DELIVERY_SECONDS_MAX,
            first_answer_seconds_max=ANSWER_SECONDS_MAX,
            say=say,
        )
        self._topics = Topics(self._client)

    def exists(self) -> bool:
        """Whether the topic exists. Asks for all topics, because asking for one by name may create it."""
        return self.topic in self._client.metadata().topics

    def create(self, *, partitions: int, settings: Mapping[str, str]) -> None:
        """Create the topic; it is fine if another client has just created it."""
        self._topics.create(self.topic, partitions=partitions, settings=settings, if_not_exists=True)

    def topic_id(self) -> str:
        """The id the broker gave the topic when it was created: another id means another topic of the same name."""
        return self._topics.topic(self.topic).topic_id

    def end_offsets(self) -> dict[int, int]:
        """The offset after the last record of each partition."""
        return self._topics.end_offsets(self.topic, self._topics.topic(self.topic).partitions, LATEST)

    def start_offsets(self) -> dict[int, int]:
        """The offset of the first record that each partition still holds."""
        return self._topics.start_offsets(self.topic, self._topics.topic(self.topic).partitions)

    def positions(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, set[int]]:
        """For each source, the positions of its lines among the records from `start_offsets` up to `end_offsets`."""
        held = self.held(start_offsets, end_offsets)
        return {source: set().union(*by_partition.values()) for source, by_partition in held.items()}

    def held(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, dict[int, set[int]]]:
        """The same for each source by partition."""
        pending = {partition: end for partition, end in end_offsets.items() if start_offsets.get(partition, 0) < end}
        found: dict[str, dict[int, set[int]]] = {}
        consumer = self._client.consumer(READING)
        try:
            consumer.assign([TopicPartition(self.topic, partition, start_offsets.get(partition, 0)) for partition in pending])
            while pending:
                self._take(consumer.poll(POLL_SECONDS) or self._awaited(consumer), pending, found)
        finally:
            consumer.close()
        return found

    def _awaited(self, consumer: Consumer) -> Message:
        began_at = time.monotonic()
        with announced(f"records of topic {self.topic}", self._client.say):
            while (message := consumer.poll(POLL_SECONDS)) is None:
                self._client.refuse_silence(began_at, f"topic {self.topic}")
        return message

    def _take(self, message: Message, pending: dict[int, int], found: dict[str, dict[int, set[int]]]) -> None:
        partition, error = message.partition(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._client.explain(error, self.topic, needs="Read")
        if error is None:
            source_id, position = _source_and_position(message)
            if source_id:
                found.setdefault(source_id, {}).setdefault(partition, set()).add(position)
        if error is not None or (message.offset() or 0) + 1 >= pending.get(partition, 0):
            pending.pop(partition, None)


def position_header(source_id: bytes, position: int) -> tuple[str, bytes]:
    """In which file and where a record's line began: a run after a crash looks for this header."""
    return POSITION_HEADER, b"%b:%d" % (source_id, position)


def _source_and_position(message: Message) -> tuple[str, int]:
    """The reverse of position_header; an empty id for a record that we did not send."""
    for name, value in reversed(headers_of(message)):
        if name == POSITION_HEADER and isinstance(value, bytes):
            source_id, _, position = value.decode("utf-8", "replace").partition(":")
            if position.isdecimal():
                return source_id, int(position)
    return "", 0
