"""What shipping needs to know and do about its topic, over a stock Kafka client: find or make it, where it ends, what it holds.

Every call has a timeout, and a broker that does not answer is a BrokerUnavailable that says where it was looked for. One that has
answered before is given time to come back, as the producer gives it: a restart under a run costs time and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from logbus.collector.errors import TopicUnusable
from logbus.errors import BrokerUnavailable, TopicMissing

TIMEOUT_SECONDS = 15.0
ANSWER_SECONDS_MAX = 2 * TIMEOUT_SECONDS  # the client itself gives up before, and says why
AWAY_SECONDS_MAX = 120.0  # as long as a record may be on its way
RETRY_SECONDS = 0.2
POSITION_HEADER = "position"
Answer = TypeVar("Answer")
_logger = logging.getLogger("logbus.collector")
_TRANSIENT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_ID,
}
_AWAY = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


class TopicClient:
    """One topic of one cluster."""

    def __init__(self, topic: str, client_config: Mapping[str, Any]) -> None:
        self.topic = topic
        self.client_config = dict(client_config)
        self._address = client_config.get("bootstrap.servers", "")
        self._admin = AdminClient(self.client_config, logger=_logger)
        self._has_answered = False

    def exists(self) -> bool:
        """Is there such a topic? Asks for all topics, since asking for one by name may make it."""
        try:
            return self.topic in self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        except KafkaException as error:
            raise self._explained(error) from error

    def create(self, *, partitions: int, settings: Mapping[str, str]) -> None:
        """Make the topic; that somebody else made it meanwhile is as good."""
        wanted = NewTopic(self.topic, num_partitions=partitions, config=dict(settings))
        try:
            self._admin.create_topics([wanted], request_timeout=TIMEOUT_SECONDS)[self.topic].result(ANSWER_SECONDS_MAX)
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._explained(error) from error

    def topic_id(self) -> str:
        """The id the broker gave the topic when it was made: another one means another topic of the same name."""
        return str(self._patiently(self._describe).topic_id)

    def end_offsets(self) -> dict[int, int]:
        """The offset after the last visible record of each partition."""
        return self._patiently(lambda: self._list(OffsetSpec.latest()))

    def start_offsets(self) -> dict[int, int]:
        """The offset of the first record that each partition still holds."""
        return self._patiently(lambda: self._list(OffsetSpec.earliest()))

    def positions(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, set[int]]:
        """For each source, the positions of its lines among the records from `start_offsets` up to `end_offsets`."""
        held = self.held(start_offsets, end_offsets)
        return {source: set().union(*by_partition.values()) for source, by_partition in held.items()}

    def held(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, dict[int, set[int]]]:
        """The same for each source by partition."""
        pending = {partition: end for partition, end in end_offsets.items() if start_offsets.get(partition, 0) < end}
        found: dict[str, dict[int, set[int]]] = {}
        consumer = self._reader()
        try:
            consumer.assign([TopicPartition(self.topic, partition, start_offsets.get(partition, 0)) for partition in pending])
            while pending:
                message = consumer.poll(TIMEOUT_SECONDS)
                if message is None:
                    raise BrokerUnavailable(f"{self._address} delivered nothing of {self.topic} for {TIMEOUT_SECONDS:.0f} s")
                self._take(message, pending, found)
        finally:
            consumer.close()
        return found

    def _reader(self) -> Consumer:
        reading = {
            "group.id": "logbus-ship",  # required by the client, never joined: partitions are assigned
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "earliest",  # retention may have passed the last checkpoint
        }
        return Consumer({**self.client_config, **reading}, logger=_logger)

    def _take(self, message: Message, pending: dict[int, int], found: dict[str, dict[int, set[int]]]) -> None:
        partition, error = message.partition(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._explained(KafkaException(error))
        if error is None:
            source_id, position = _source_and_position(message)
            if source_id:
                found.setdefault(source_id, {}).setdefault(partition, set()).add(position)
        if error is not None or (message.offset() or 0) + 1 >= pending.get(partition, 0):
            pending.pop(partition, None)

    def _describe(self) -> Any:
        asked = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=TIMEOUT_SECONDS)
        return asked[self.topic].result(ANSWER_SECONDS_MAX)

    def _list(self, spec: OffsetSpec) -> dict[int, int]:
        partitions = [TopicPartition(self.topic, one.id) for one in self._describe().partitions]
        asked = self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=TIMEOUT_SECONDS)
        return {one.partition: answer.result(ANSWER_SECONDS_MAX).offset for one, answer in asked.items()}

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while the cluster tells itself about a new topic or a new leader, or is away after it was there."""
        asked_at = time.monotonic()
        while True:
            try:
                answer = ask()
                self._has_answered = True
                return answer
            except KafkaException as error:
                if time.monotonic() - asked_at > self._patience_seconds(_code(error)):
                    raise self._explained(error) from error
            time.sleep(RETRY_SECONDS)

    def _patience_seconds(self, code: int) -> float:
        if code in _AWAY:
            return AWAY_SECONDS_MAX if self._has_answered else 0.0
        return TIMEOUT_SECONDS if code in _TRANSIENT else 0.0

    def _explained(self, error: KafkaException) -> Exception:
        code = _code(error)
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicMissing(f"there is no topic {self.topic} at {self._address}")
        if code in _AWAY:
            hint = "check --bootstrap-server, or start one with `logbus broker serve`"
            return BrokerUnavailable(f"no broker answers at {self._address}: {hint}")
        return TopicUnusable(f"topic {self.topic} at {self._address}: {error.args[0].str()}")


def position_header(source_id: bytes, position: int) -> tuple[str, bytes]:
    """Where a record's line began in which file: what a run after a crash looks for."""
    return POSITION_HEADER, b"%b:%d" % (source_id, position)


def _source_and_position(message: Message) -> tuple[str, int]:
    """The reverse of position_header; an empty id for a record that we did not send."""
    for name, value in reversed(message.headers() or []):
        if name == POSITION_HEADER and isinstance(value, bytes):
            source_id, _, position = value.decode("utf-8", "replace").partition(":")
            if position.isdecimal():
                return source_id, int(position)
    return "", 0


def _code(error: KafkaException) -> int:
    code: int = error.args[0].code()
    return code
