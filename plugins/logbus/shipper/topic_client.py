"""What shipping needs from its topic: create it, where it ends, which lines it holds, and which it has lost.

A broker that has answered before is given time to come back, as the producer does: a restart during a run costs time and nothing
else. One that is away and never answered fails the run at once.

A topic that ends before the recorded offsets has lost lines that it had acknowledged, by a restore or an unclean election. Each
record names its line and file, so the topic itself shows what it still holds; lines that a file has and the topic lacks are sent
again. That works only if nothing else explains why a line is missing: if retention has deleted records that may be among the lost
ones, the two cannot be told apart, and nothing is sent.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.errors import TopicShortened
from logbus.fingerprint import headers_of
from logbus.kafka.client import ANSWER_SECONDS_MAX, LATEST, Client
from logbus.kafka.producing import DELIVERY_SECONDS_MAX
from logbus.kafka.topics import Topics
from logbus.shipper.sources import Source
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
        """The id that the broker gave the topic when it was created; a recreated topic has another one."""
        return self._topics.topic(self.topic).topic_id

    def end_offsets(self) -> dict[int, int]:
        """The offset after the last record of each partition."""
        return self._topics.end_offsets(self.topic, self._topics.topic(self.topic).partitions, LATEST)

    def start_offsets(self) -> dict[int, int]:
        """The offset of the first record that each partition still holds."""
        return self._topics.start_offsets(self.topic, self._topics.topic(self.topic).partitions)

    def positions(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, dict[int, set[int]]]:
        """For each source, by partition, the positions of its lines in the records from `start_offsets` up to `end_offsets`."""
        pending = {partition: end for partition, end in end_offsets.items() if start_offsets.get(partition, 0) < end}
        positions: dict[str, dict[int, set[int]]] = {}
        consumer = self._client.consumer(READING)
        try:
            consumer.assign([TopicPartition(self.topic, partition, start_offsets.get(partition, 0)) for partition in pending])
            while pending:
                self._take(consumer.poll(POLL_SECONDS) or self._awaited(consumer), pending, positions)
        finally:
            consumer.close()
        return positions

    def _awaited(self, consumer: Consumer) -> Message:
        began_at = time.monotonic()
        with announced(f"records of topic {self.topic}", self._client.say):
            while (message := consumer.poll(POLL_SECONDS)) is None:
                self._client.raise_if_silent(began_at, f"topic {self.topic}")
        return message

    def _take(self, message: Message, pending: dict[int, int], positions: dict[str, dict[int, set[int]]]) -> None:
        partition, error = message.partition(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._client.explain(error, self.topic, needs="Read")
        if error is None:
            source_id, position = _source_and_position(message)
            if source_id:
                positions.setdefault(source_id, {}).setdefault(partition, set()).add(position)
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


# If an interrupted run was resumed, the topic may hold a file's lines in another order than the file, but only within what was
# sent since a checkpoint. So this many lines before the last one stored are checked again.
LINES_LOOKED_BACK = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTruncation:
    """For each partition that ends too early, its end and the recorded offset; if there are none, nothing is lost."""

    topic: str
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, recorded: Mapping[int, int], end_offsets: Mapping[int, int]) -> TopicTruncation:
        short = {part: (end_offsets[part], offset) for part, offset in recorded.items() if end_offsets.get(part, offset) < offset}
        return cls(topic=topic, ends=short)

    @property
    def records(self) -> int:
        return sum(recorded - end for end, recorded in self.ends.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{self.topic}-{part} ends at {end} and had reached {recorded}" for part, (end, recorded) in self.ends.items()
        )


def rewound(
    source: Source, truncation: TopicTruncation, stored: Mapping[int, set[int]], start_offsets: Mapping[int, int]
) -> Source:
    """The source, set back to a position before the first lost line, with the later lines that the topic still holds; `stored`
    are, by partition, the positions of its lines in the topic."""
    if not source.position:
        return source
    positions = sorted(position for in_partition in stored.values() for position in in_partition)
    last_stored = min(max(stored.get(partition, {0}), default=0) for partition in truncation.ends)
    index = max(0, bisect_left(positions, last_stored) - LINES_LOOKED_BACK)
    position = positions[index] if index else 0
    for partition, start in start_offsets.items():
        if start and min(stored.get(partition, ()), default=source.position) > position:
            raise TopicShortened(
                f"topic {truncation.topic} has lost records that it had acknowledged ({truncation}), and retention has deleted "
                f"others, so it is unknown which lines of {source.path} to send again. To send all of them, move the state file "
                "away; to go on without the lost records, --accept-loss"
            )
    return replace(source, position=position, timestamp_ms=None, ahead=tuple(positions[index:]))
