"""Records on their way: a stock idempotent producer and one promise: `settle` returns only when all is acknowledged.

The producer retries by itself and, being idempotent, stores each record once and in order. No callback runs for a record that
arrives, only for one that does not, so a line costs about two microseconds here; an acknowledgement is known for all lines
together, at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from logbus.collector.errors import DeliveryFailed
from logbus.kafka.client import Client
from logbus.kafka.producing import DEFAULTS, SETTINGS

POLL_EVERY_LINES = 2048
CLIENTS_CHOICE = -1  # a partition: the client's partitioner chooses

PRODUCER_DEFAULTS: Mapping[str, Any] = {
    **SETTINGS,
    **DEFAULTS,
    "linger.ms": 50,  # full batches: a log file is always ahead of the network
    "delivery.report.only.error": True,
}


class Delivery:
    """A producer for one topic. Not for use by several threads."""

    def __init__(self, topic: str, client_config: Mapping[str, Any], *, queued_lines_max: int) -> None:
        limits = {"queue.buffering.max.messages": queued_lines_max}
        self._topic = topic
        self._client = Client(client_config)
        self._producer = self._client.producer({"on_delivery": self._note_failure}, {**PRODUCER_DEFAULTS, **limits})
        self._failure: KafkaError | None = None
        self._sent = 0

    def send(
        self, value: bytes, *, key: bytes, timestamp_ms: int, headers: list[tuple[str, bytes]], partition: int = CLIENTS_CHOICE
    ) -> None:
        """Queue one record; waits while the queue is full, raises DeliveryFailed once something failed."""
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, timestamp=timestamp_ms, headers=headers)
                break
            except BufferError:
                self._producer.poll(0.1)
                self._raise_failure()
            except KafkaException as error:
                self._failure = error.args[0]
                self._raise_failure()
        self._sent += 1
        if self._sent % POLL_EVERY_LINES == 0:
            self._producer.poll(0)
            self._raise_failure()

    def settle(self) -> None:
        """Return when every record sent so far is acknowledged; DeliveryFailed otherwise."""
        while self._producer.flush(1.0) and self._failure is None:
            pass
        self._raise_failure()

    def abandon(self) -> None:
        """Forget what is not sent yet, so that leaving does not wait for a broker that is away."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            cause = self._client.explain(self._failure, self._topic, needs="Write")
            raise DeliveryFailed(f"topic {self._topic}: {cause}. Then run again: what was acknowledged is not sent twice")
