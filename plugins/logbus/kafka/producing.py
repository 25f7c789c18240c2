"""Records sent to a topic by a stock producer, with one promise: `settle` returns when all are acknowledged or one has failed.

`Delivery` keeps that promise: records in, the first failure out. The shipper sends through it; `Sending`, for `produce` and
`logbus produce`, adds which record failed and which offsets the others got, which costs a callback per record. The producer is
idempotent and waits for all in-sync replicas: what it retries internally is stored once and in order. Records acknowledged
before a failure stay stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from logbus import errors, model, waiting
from logbus.kafka.client import SLOW_SECONDS_MAX, Client

DELIVERY_SECONDS_MAX = SLOW_SECONDS_MAX  # how long a broker may be slow or away before a record counts as failed
POLL_EVERY_RECORDS = 1_000  # how often acknowledgements are processed; the client's own queue bounds the memory
FLUSH_SECONDS = 0.5  # the longest delay before `stop` is looked at again
FAILED_SECONDS_MAX = 2.0  # for the other records after one failed, so that the error can report how many are stored
KEY_SHOWN_MAX = 60

SETTINGS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
}
DEFAULTS: Mapping[str, Any] = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # the Java client's: either client puts a key in the same partition
}
CLIENTS_CHOICE = -1  # as a partition: the client's partitioner chooses one
NOW = 0  # as a timestamp: librdkafka takes the current time
FIELDS = ("value", "key", "headers", "timestamp", "partition")


@dataclass(slots=True)
class Acknowledged:
    """The acknowledged records of one partition."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def take(self, offset: int) -> None:
        self.records += 1
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)
        self.last_offset = offset if self.last_offset is None else max(self.last_offset, offset)


class Delivery:
    """Records in flight to one topic. Not thread-safe. A callback runs for each record unless `settings` has
    `delivery.report.only.error`; `failure` is the error of the first record that was not stored."""

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
        """Queues one record, given as for librdkafka's `produce`; waits while the queue is full. No-op after a failure."""
        while self.failure is None:
            try:
                # Positional (the callback has two names): with keywords a record took 16,900 instructions instead of 13,400.
                self._producer.produce(self.topic, value, key, partition, on_delivery, None, timestamp, headers)
                break
            except BufferError:
                self._make_room()
            except KafkaException as error:
                self.failure = error.args[0]
        self.sent += 1
        if self.sent % POLL_EVERY_RECORDS == 0:
            self._serve(self._producer.poll, 0)

    def settle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until every record is acknowledged, one has failed, or `stop` returns true."""
        with self._announced():
            while self.failure is None and not stop() and self._serve(self._producer.flush, FLUSH_SECONDS):
                pass

    def finish(self, seconds_max: float = 0.0) -> None:
        """Waits up to `seconds_max` for records in flight, then drops the rest: a shutdown must not hang on a dead broker."""
        self._serve(self._producer.flush, seconds_max)
        self._producer.purge()
        self._serve(self._producer.flush, 1.0)

    def cause(self) -> str:
        """Why the first record that failed is not stored; empty where none failed."""
        failure = self.failure
        if failure is None:
            return ""
        if failure.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:  # of who may write to no topic: as an idempotent producer
            failure = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, failure.str())
        return str(self.client.explain(failure, self.topic, needs="Write"))

    def _serve(self, wait: Callable[[float], int], seconds: float) -> int:
        """Waits, with callbacks. A fatal error, such as a producer that is refused, is raised here once."""
        try:
            return wait(seconds)
        except (KafkaException, SystemError) as error:
            # The library raises inside of one callback, and calls the next all the same, which makes it a SystemError.
            fatal = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(fatal, KafkaException):
                raise
            self.failure = fatal.args[0]
            return 0

    def _make_room(self) -> None:
        """Waits until the queue is shorter."""
        queued = len(self._producer)
        with self._announced():
            while self.failure is None and len(self._producer) >= queued:
                self._serve(self._producer.poll, 0.1)

    def _announced(self) -> AbstractContextManager[None]:
        return waiting.announced(f"the broker at {self.client.address} to acknowledge records", self.client.say)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = error


@dataclass(slots=True)
class Sending:
    """The records of one call, with the outcome of each."""

    delivery: Delivery
    partitions: dict[int, Acknowledged] = field(default_factory=dict)
    failed: str = ""  # names the record that failed

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
            self.failed = _named(number, arguments["key"])

    def note(self, number: int, error: KafkaError | None, message: Message) -> None:
        """The delivery report of a record."""
        if error is None:
            self.partitions.setdefault(message.partition() or 0, Acknowledged()).take(message.offset() or 0)
        elif not self.has_failed:
            self.delivery.failure, self.failed = error, _named(number, message.key())

    def finish(self, seconds_max: float) -> int:
        """Waits up to `seconds_max` for records in flight, then drops the rest; returns how many were not acknowledged."""
        self.delivery.finish(seconds_max)
        return self.delivery.sent - self.acknowledged

    def settle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until every record is acknowledged or `stop` returns true; `ProduceFailed` if one has failed."""
        self.delivery.settle(stop)
        if self.has_failed:
            self.finish(FAILED_SECONDS_MAX)
            raise errors.ProduceFailed(
                f"{self.failed or 'a record'} was not stored in topic {self.topic}: {self.delivery.cause()}. "
                f"{self.acknowledged} records were stored; sending again stores those again"
            )


def _named(number: int, key: Any) -> str:
    return f"record {number}" + ("" if key is None else f" (key {str(key)[:KEY_SHOWN_MAX]})")


def produce(client_config: Mapping[str, Any], topic: str, records: Iterable[Any]) -> dict[str, Any]:
    """Sends all records in order and returns, by partition, how many were stored with their first and last offsets.

    A record is a value (bytes, text, or anything JSON can express) or a mapping with `value` and any of `key`, `headers`,
    `timestamp` (a datetime, or milliseconds) and `partition`.
    """
    sending = open_sending(client_config, topic)
    for record in records:
        sending.send(record)
        if sending.has_failed:
            break
    sending.settle()
    return summary(sending)


def open_sending(client_config: Mapping[str, Any], topic: str, say: waiting.Say = waiting.say_nothing) -> Sending:
    """A producer for the topic, with nothing sent yet."""
    return Sending(Delivery(Client(client_config, say=say), topic, SETTINGS))


def summary(sending: Sending) -> dict[str, Any]:
    """How many records of each partition are stored, and at which offsets."""
    return {
        "topic": sending.topic,
        "records": sending.acknowledged,
        "partitions": {
            str(part): {"records": stored.records, "first_offset": stored.first_offset, "last_offset": stored.last_offset}
            for part, stored in sorted(sending.partitions.items())
        },
    }


def produce_arguments(number: int, record: Any) -> dict[str, Any]:
    """A record as arguments of `Delivery.send`."""
    fields = dict(record) if isinstance(record, Mapping) and "value" in record else {"value": record}
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise errors.UserError(
            f"record {number} has {', '.join(map(repr, unknown))}: a record has {', '.join(FIELDS)}; other data goes into value"
        )
    arguments: dict[str, Any] = {"value": _encoded(fields["value"]), "key": _encoded(fields.get("key"))}
    if fields.get("headers"):
        arguments["headers"] = [(name, _encoded(value)) for name, value in dict(fields["headers"]).items()]
    if fields.get("timestamp") is not None:
        at = fields["timestamp"]
        arguments["timestamp"] = model.milliseconds(model.utc(at)) if isinstance(at, datetime) else int(at)
    if fields.get("partition") is not None:
        arguments["partition"] = int(fields["partition"])
    return arguments


def _encoded(value: Any) -> bytes | None:
    """Bytes as they are, text as UTF-8, the rest as JSON; None stays None (as a value, a tombstone)."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
