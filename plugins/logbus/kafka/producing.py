"""Records sent to a topic by a stock producer, and one promise: `settle` returns when all are acknowledged, or one has failed.

`Delivery` is that promise: records in, the first failure out. The collector sends by it; `Sending`, for `produce` and
`logbus produce`, adds whose record failed and which offsets the others got, which costs a callback for each. The producer is
idempotent and waits for all in-sync replicas: what it retries by itself is stored once and in order. What was acknowledged before
a failure stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from logbus.errors import ProduceFailed, UserError
from logbus.kafka.client import Client
from logbus.model import milliseconds

DELIVERY_SECONDS_MAX = 120.0  # how long a broker may be away before a record counts as failed
POLL_EVERY_RECORDS = 1_000  # acknowledgements are taken so often; the client's own queue bounds the memory
FLUSH_SECONDS = 0.5  # how long whoever wants to stop may have to wait
FAILED_SECONDS_MAX = 2.0  # for records beside the one that failed, so that it can be said how many are stored
KEY_SHOWN_MAX = 60

SETTINGS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
}
DEFAULTS: Mapping[str, Any] = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # the Java client's: the same key finds the same partition from either
}
CLIENTS_CHOICE = -1  # a partition: the client's partitioner chooses
NOW = 0  # a timestamp: librdkafka takes the clock's
FIELDS = ("value", "key", "headers", "timestamp", "partition")


@dataclass(slots=True)
class Acknowledged:
    """What of one partition is stored."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def take(self, offset: int) -> None:
        self.records += 1
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)
        self.last_offset = offset if self.last_offset is None else max(self.last_offset, offset)


class Delivery:
    """Records of one topic on their way. Not for use by several threads. A callback runs for each record unless `settings` say
    `delivery.report.only.error`; `failure` is the first that was not stored."""

    def __init__(self, client: Client, topic: str, settings: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> None:
        self.client = client
        self.topic = topic
        self.sent = 0
        self.failure: KafkaError | None = None
        self._producer = client.producer({**settings, "on_delivery": self._note}, defaults)

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = CLIENTS_CHOICE,
        timestamp: int = NOW,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        """Queues one record, as librdkafka's `produce` takes it; waits while the queue is full. Nothing, after a failure."""
        while self.failure is None:
            try:
                # By position (`callback` comes under two names): by name a record took 16,900 instructions instead of 13,400.
                self._producer.produce(self.topic, value, key, partition, on_delivery, None, timestamp, headers)
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self.failure = error.args[0]
        self.sent += 1
        if self.sent % POLL_EVERY_RECORDS == 0:
            self._producer.poll(0)

    def settle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits for every acknowledgement, until one fails, or until it shall stop."""
        while self.failure is None and not stop() and self._producer.flush(FLUSH_SECONDS):
            pass

    def finish(self, seconds_max: float = 0.0) -> None:
        """Waits so long for what is under way, then gives the rest up: leaving does not wait for a broker that is away."""
        self._producer.flush(seconds_max)
        self._producer.purge()
        self._producer.flush(1.0)

    def cause(self) -> str:
        """Why the first record that failed is not stored; empty where none failed."""
        return "" if self.failure is None else str(self.client.explain(self.failure, self.topic, needs="Write"))

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = error


@dataclass(slots=True)
class Sending:
    """One call's records under way, with what became of each."""

    delivery: Delivery
    partitions: dict[int, Acknowledged] = field(default_factory=dict)
    failed: str = ""  # which record it was

    @property
    def topic(self) -> str:
        return self.delivery.topic

    @property
    def has_failed(self) -> bool:
        return self.delivery.failure is not None

    @property
    def acknowledged(self) -> int:
        return sum(part.records for part in self.partitions.values())

    def send(self, record: Any) -> None:
        """Queues one record; waits while the queue is full."""
        number, arguments = self.delivery.sent, produce_arguments(self.delivery.sent, record)
        self.delivery.send(**arguments, on_delivery=lambda *report: self.note(number, *report))
        if self.has_failed and not self.failed:
            self.failed = named(number, arguments["key"])

    def note(self, number: int, error: KafkaError | None, message: Message) -> None:
        """The broker's word on a record."""
        if error is None:
            self.partitions.setdefault(message.partition() or 0, Acknowledged()).take(message.offset() or 0)
        elif not self.has_failed:
            self.delivery.failure, self.failed = error, named(number, message.key())

    def finish(self, seconds_max: float) -> int:
        """Waits so long for what is under way, then gives the rest up; returns how many records were not acknowledged."""
        self.delivery.finish(seconds_max)
        return self.delivery.sent - self.acknowledged

    def settle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits for every acknowledgement, or until it shall stop; `ProduceFailed` where one did not come."""
        self.delivery.settle(stop)
        if self.has_failed:
            self.finish(FAILED_SECONDS_MAX)
            raise ProduceFailed(
                f"{self.failed} was not stored in topic {self.topic}: {self.delivery.cause()}. "
                f"{self.acknowledged} records were stored; sending again stores those again"
            )


def named(number: int, key: Any) -> str:
    return f"record {number}" + ("" if key is None else f" (key {str(key)[:KEY_SHOWN_MAX]})")


def produce(client_config: Mapping[str, Any], topic: str, records: Iterable[Any]) -> dict[str, Any]:
    """Sends all records, in order, and returns by partition how many were stored, and their first and last offsets.

    A record is a value (bytes, text, or anything JSON can say) or a mapping with `value` and any of `key`, `headers`, `timestamp`
    (an instant, or milliseconds) and `partition`.
    """
    sending = open_sending(client_config, topic)
    for record in records:
        sending.send(record)
        if sending.has_failed:
            break
    sending.settle()
    return summary(sending)


def open_sending(client_config: Mapping[str, Any], topic: str) -> Sending:
    """A producer for the topic, with nothing sent yet."""
    return Sending(Delivery(Client(client_config), topic, SETTINGS))


def summary(sending: Sending) -> dict[str, Any]:
    """How many records of which partition are stored, and where."""
    return {
        "topic": sending.topic,
        "records": sending.acknowledged,
        "partitions": {
            str(part): {"records": found.records, "first_offset": found.first_offset, "last_offset": found.last_offset}
            for part, found in sorted(sending.partitions.items())
        },
    }


def produce_arguments(number: int, record: Any) -> dict[str, Any]:
    """A record as the client takes it."""
    fields = dict(record) if isinstance(record, Mapping) and "value" in record else {"value": record}
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise UserError(
            f"record {number} has {', '.join(map(repr, unknown))}: a record has {', '.join(FIELDS)}; other data goes into value"
        )
    arguments: dict[str, Any] = {"value": encoded(fields["value"]), "key": encoded(fields.get("key"))}
    if fields.get("headers"):
        arguments["headers"] = [(name, encoded(value)) for name, value in dict(fields["headers"]).items()]
    if fields.get("timestamp") is not None:
        arguments["timestamp"] = stamp_ms(fields["timestamp"])
    if fields.get("partition") is not None:
        arguments["partition"] = int(fields["partition"])
    return arguments


def encoded(value: Any) -> bytes | None:
    """Bytes as they are, text as UTF-8, the rest as JSON; None stays none (a tombstone, where it is a value)."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def stamp_ms(timestamp: Any) -> int:
    return milliseconds(timestamp) if isinstance(timestamp, datetime) else int(timestamp)
