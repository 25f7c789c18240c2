"""What shipping needs from its topic: find or create it, where it ends, what it holds.

A broker that has answered before is given time to come back, as the producer does: a restart during a run costs time and nothing
else. One that never answered fails the run at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from logbus.fingerprint import headers_of
from logbus.kafka.client import ANSWER_SECONDS_MAX, LATEST, Client
from logbus.kafka.topics import Topics

TIMEOUT_SECONDS = 15.0
AWAY_SECONDS_MAX = 120.0  # the same time that a record may be in flight
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

    def __init__(self, topic: str, client_config: Mapping[str, Any]) -> None:
        self.topic = topic
        self._client = Client(
            client_config,
            timeout_seconds=TIMEOUT_SECONDS,
            away_seconds_max=AWAY_SECONDS_MAX,
            first_answer_seconds_max=ANSWER_SECONDS_MAX,
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
                message = consumer.poll(TIMEOUT_SECONDS)
                if message is None:
                    raise self._client.unavailable(f"nothing came of topic {self.topic} for {TIMEOUT_SECONDS:.0f} s")
                self._take(message, pending, found)
        finally:
            consumer.close()
        return found

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
