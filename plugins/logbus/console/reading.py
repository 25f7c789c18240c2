"""Reading a topic for a terminal or a pipe: by assignment, or as a member of a group that commits what was printed.

Without a group every partition has a stretch to read, fixed when the reading begins, so that it ends although producers continue;
when following there is no end. With a group the partitions are those the group assigns, and an offset is stored for the group's
next commit only after the caller has processed the record: what was not printed is read again. Records are yielded in batches as
they arrive, which lets the caller write and flush once for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from logbus.console.positions import OffsetStretch
from logbus.errors import AccessDenied, BrokerUnavailable, LogbusError, TopicMissing
from logbus.kafka.client import READ_COMMITTED, SLOW_SECONDS_MAX, Client
from logbus.kafka.errors import AWAY, MISSING, explain
from logbus.waiting import Say, announced, say_nothing

BATCH_RECORDS = 1_000
POLL_SECONDS = 0.5  # how long a signal may wait for the client to return
# For a broker that delivers nothing although its end offsets say there are records: it was there a moment ago.
SILENCE_SECONDS_MAX = SLOW_SECONDS_MAX

SETTINGS: Mapping[str, Any] = {
    "enable.partition.eof": True,
    "enable.auto.offset.store": False,  # stored once it is printed
    "fetch.wait.max.ms": 500,
    "fetch.queue.backoff.ms": 10,  # by default the client pauses for a second whenever its queue is full
}


class ReadFailed(LogbusError):
    """The broker stopped delivering records with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to read and how: at most `count_max` records, either to the end or forever."""

    topic: str
    follows: bool = False
    count_max: int | None = None
    isolation_level: str = READ_COMMITTED


def consumer(
    client_config: Mapping[str, Any],
    wish: Wish,
    group: str | None,
    reset: str = "error",
    settings: Mapping[str, Any] | None = None,
) -> Consumer:
    """A client for this reading; it commits offsets only when a group is given."""
    membership = {
        "group.id": group or "logbus-consume",  # the client needs a name even if no group is joined
        "enable.auto.commit": group is not None,
        "auto.offset.reset": reset,
        "isolation.level": wish.isolation_level,
    }
    return Client(client_config).consumer({**SETTINGS, **membership, **(settings or {})})


class ConsoleReading:
    """One reading; `records` counts those yielded. Uses assignment if stretches are given, else a group's membership."""

    def __init__(
        self,
        client: Consumer,
        wish: Wish,
        stretches: Mapping[int, OffsetStretch] | None = None,
        group: str | None = None,
        say: Say = say_nothing,
    ) -> None:
        self.client = client
        self.wish = wish
        self.group = group or ""
        self.stretches = stretches
        self.records = 0
        self._say = say_nothing if wish.follows else say  # at the end of a topic there is nothing to wait for
        self._open: set[int] = set()  # partitions not yet read to their end
        self._has_begun = stretches is not None

    def batches(self, stop: Callable[[], bool] = lambda: False) -> Iterator[list[Message]]:
        """Records as they arrive, in order within each partition; ends where the wish does, or when `stop` returns true."""
        self._begin()
        while not self._is_done() and not stop():
            found = self._arrived(stop)
            if batch := [message for message in found if self._takes(message)]:
                self.records += len(batch)
                yield batch
                self._store(batch)

    def _arrived(self, stop: Callable[[], bool]) -> list[Message]:
        """What the client delivers next: records, errors, ends of partitions; nothing if that ends the reading first."""
        silent_seconds = 0.0
        with announced(f"records of topic {self.wish.topic}", self._say):
            while not (found := self.client.consume(self._batch_records(), POLL_SECONDS)):
                silent_seconds += POLL_SECONDS
                if silent_seconds >= SILENCE_SECONDS_MAX and not self.wish.follows:
                    raise BrokerUnavailable(
                        f"the broker delivered nothing of topic {self.wish.topic} for {SILENCE_SECONDS_MAX:.0f} s: "
                        "check that it runs, and read again"
                    )
                if stop() or self._is_done():
                    break
        return list(found)

    def _begin(self) -> None:
        topic, follows = self.wish.topic, self.wish.follows
        if self.stretches is None:
            self.client.subscribe([topic], on_assign=self._note_assigned, on_revoke=self._note_revoked)
            return
        wanted = {part: found for part, found in self.stretches.items() if follows or found.start_offset < found.end_offset}
        self._open = set(wanted)
        self.client.assign([TopicPartition(topic, part, found.start_offset) for part, found in wanted.items()])

    def _is_done(self) -> bool:
        if self.wish.count_max is not None and self.records >= self.wish.count_max:
            return True
        return self._has_begun and not self._open and not self.wish.follows

    def _batch_records(self) -> int:
        return BATCH_RECORDS if self.wish.count_max is None else min(BATCH_RECORDS, self.wish.count_max - self.records)

    def _takes(self, message: Message) -> bool:
        """Whether this is a record to yield; notes the end of a partition."""
        partition, error = message.partition(), message.error()
        if error is not None:
            self._note_error(error, partition, message.offset())
            return False
        if self.stretches is None or self.wish.follows:
            return True
        end_offset = self.stretches[partition].end_offset
        if message.offset() + 1 >= end_offset:
            self._close(partition)
        return bool(message.offset() < end_offset)

    def _note_error(self, error: KafkaError, partition: int, offset: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # An acknowledged record may not be visible yet: only the end offset read at the start counts as the end.
            if self.stretches is None or (offset or 0) >= self.stretches[partition].end_offset:
                self._close(partition)
        elif error.code() in MISSING:
            raise TopicMissing(f"there is no topic {self.wish.topic} any more")
        elif error.fatal() or error.code() not in AWAY:  # the client retries AWAY; what it gives up on is fatal
            about = self.group if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else self.wish.topic
            cause = explain(error, about, needs="Read")
            raise (
                cause if isinstance(cause, AccessDenied) else ReadFailed(f"reading {self.wish.topic}-{partition} ended: {cause}")
            )

    def _close(self, partition: int) -> None:
        """The partition is read to its end; a group's member does not pause it, as more may arrive before the others are done."""
        if self.wish.follows:
            return
        self._open.discard(partition)
        if self.stretches is not None:
            self.client.pause([TopicPartition(self.wish.topic, partition)])

    def _store(self, batch: list[Message]) -> None:
        """Stores the offsets after these records for the group's next commit."""
        if self.stretches is not None:
            return
        ends = {message.partition(): (message.offset() or 0) + 1 for message in batch}
        with suppress(KafkaException):  # the partition was reassigned: its new member reads the records again
            self.client.store_offsets(offsets=[TopicPartition(self.wish.topic, part, end) for part, end in ends.items()])

    def _note_assigned(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_begun = True
        self._open |= {part.partition for part in partitions}

    def _note_revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._open -= {part.partition for part in partitions}
