"""The topic `_schemas`: read by a thread from its beginning on, written by one registry at a time.

A write is answered when its own record has come back through the reading thread and counts (registry_state.py says which records
do). So what was answered is on the disks of all in-sync replicas, and every registry that has read as far knows it.

Who writes. The first write takes the pen: a fence record is produced and everything before it is read. A registry that later sees
another one's fence reads on and writes no more, until it is restarted: two that took turns would each void the other's records. A
record whose fate is unknown (no acknowledgement in time) may still arrive; before the next write a new fence is produced, which
voids it if it comes after. Void records of a replaced writer are repaired by the next one, at its start and before each write.

A kill at any moment leaves a record that is in the log or is not: nothing else is kept.

A log may be cut: an unclean election, or a broker that was restored from a copy. The client notices that its offset or its epoch
is not of this log any more, and goes on where the two part, or at the first record; so an offset that goes backwards is how it
shows here. Then everything is read anew, look-ups wait for it, and the registry has the pen no more than one that has just
started. Ids that it has given out to what is gone are not given out again: records may name them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus import errors, fingerprint, waiting
from logbus.kafka.client import LATEST, Client
from logbus.kafka.producing import SETTINGS, Delivery
from logbus.kafka.topics import CLEANUP_POLICY, Topics, deletes
from logbus.web.registry_state import FENCE, NOBODY, WRITER, Entry, RegistryState, UnreadableRecord
from logbus.web.schema_text import NOT_THE_WRITER, STORE_FAILED, STORE_SLOW, RegistryRefusal

logger = logging.getLogger("logbus.registry")

TOPIC = "_schemas"
PARTITION = 0
WRITE_SECONDS_MAX = 30.0  # a client's own time-out is a minute at most, and it should learn why
LOAD_SECONDS_MAX = 600.0  # a hundred thousand schemas take some ten seconds
RECORDS_PER_CALL = 500
CALL_SECONDS_MAX = 0.1
# A void record is repaired before compaction can take what it hides, even if no registry runs for a week.
COMPACTION_LAG_MS = 7 * 24 * 3_600_000
TOPIC_SETTINGS = {CLEANUP_POLICY: "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
CONSUMER_SETTINGS: Mapping[str, Any] = {
    "group.id": "logbus-registry",  # the client insists on one; no group is joined, no offset committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 20,  # how long the broker may hold back what a writer waits for
}
PRODUCER_SETTINGS: Mapping[str, Any] = {**SETTINGS, "message.timeout.ms": int(WRITE_SECONDS_MAX * 1000), "linger.ms": 0}
# Errors after which the topic is not what was read any more; the client retries after any other.
FINAL = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError.TOPIC_AUTHORIZATION_FAILED)


class RegistryStore:
    """`open` it, then ask `reading` and `writing`, from any threads; `close` it. `on_failure` is told that it works no more."""

    def __init__(self, client: Client, *, topic: str = TOPIC, on_failure: Callable[[], None] = lambda: None) -> None:
        self.topic = topic
        self.client = client
        self.failure: str | None = None
        self._on_failure = on_failure
        self._state = RegistryState()
        self._position = 0
        self._is_whole = False  # whether the end was reached since the reading began, for the last time after a cut
        self._read = threading.Condition()  # of state and position
        self._pen = threading.Lock()
        self._number = NOBODY  # of our last fence
        self._needs_fence = True
        self._counted: dict[int, bool] = {}  # of our own records, by offset, until the writer has looked
        self._delivery: Delivery | None = None
        self._ending = threading.Event()
        self._reader: threading.Thread | None = None

    # Lifetime.

    def open(self, *, is_made: bool = True) -> None:
        """Reads the whole topic, which is made if there is none and `is_made`. `UserError` where it is none of a registry."""
        topics = Topics(self.client)
        try:
            partitions = topics.topic(self.topic).partitions
        except errors.TopicMissing:  # only then is the right to create topics needed
            if not is_made:
                raise
            topics.create(self.topic, partitions=1, settings=TOPIC_SETTINGS, if_not_exists=True)
            partitions = waiting.wait_until(
                lambda: topics.topic(self.topic).partitions,
                what=f"topic {self.topic}",
                not_yet=errors.TopicMissing,
                timeout_seconds=self.client.timeout_seconds,
            )
        if len(partitions) != 1:
            raise errors.UserError(f"topic {self.topic} has {len(partitions)} partitions; a registry needs exactly one")
        if deletes(topics.settings(self.topic, [CLEANUP_POLICY])):
            raise errors.UserError(
                f"topic {self.topic} deletes old records, and schemas with them: "
                f"logbus topic alter {self.topic} --config cleanup.policy=compact"
            )
        self._reader = threading.Thread(target=self._read_on, name="registry-reader", daemon=True)
        self._reader.start()
        self._wait_for_end(LOAD_SECONDS_MAX)

    def close(self) -> None:
        self._ending.set()
        if self._reader is not None:
            self._reader.join()
        if self._delivery is not None:
            self._delivery.finish()

    # Reading.

    @contextmanager
    def reading(self) -> Iterator[RegistryState]:
        """The state, which does not change meanwhile: for a few look-ups, not for waiting."""
        with self._read:
            if not self._read.wait_for(lambda: self._is_whole or self.failure is not None, timeout=WRITE_SECONDS_MAX):
                self._refuse_as_cut()
            yield self._state

    def _read_on(self) -> None:
        try:
            while not self._ending.is_set():
                consumer = self.client.consumer(CONSUMER_SETTINGS)
                try:
                    consumer.assign([TopicPartition(self.topic, PARTITION, 0)])
                    self._follow(consumer)
                finally:
                    consumer.close()
        except Exception as error:
            logger.exception("reading %s has ended", self.topic)
            self._fail(f"reading it has ended: {error}")

    def _follow(self, consumer: Consumer) -> None:
        """Until the end, or until the log was cut."""
        goes_on = True
        while goes_on and not self._ending.is_set():
            # The client waits for as many as it is asked for: a writer waits for one.
            messages = consumer.consume(1, timeout=CALL_SECONDS_MAX)
            if messages:
                messages += consumer.consume(RECORDS_PER_CALL, timeout=0)
                with self._read:
                    goes_on = all(self._take(message) for message in messages)
                    self._read.notify_all()

    def _take(self, message: Message) -> bool:
        """False if what was read before it is not in the log any more."""
        offset = int(message.offset() or 0)
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # compaction may have taken what was last
                if offset < self._position:
                    return self._begin_again(offset)
                self._position, self._is_whole = offset, True
            elif error.fatal() or error.code() in FINAL:
                raise self.client.explain(error, self.topic, needs="Read")
            return True
        if offset < self._position:
            return self._begin_again(offset)
        headers = {name: value or b"" for name, value in fingerprint.headers_of(message)}
        try:
            counts = self._state.apply(offset, message.key(), message.value(), headers)
        except (UnreadableRecord, ValueError) as error:
            logger.warning(
                "the record at offset %d of %s is not one of a registry, and is left out: %s", offset, self.topic, error
            )
            counts = False
        if headers.get(WRITER) == str(self._number).encode():
            self._counted[offset] = counts
        self._position = offset + 1
        return True

    def _begin_again(self, offset: int) -> bool:
        cut = "%s was read up to offset %d, and goes on at %d: records of it were lost, and it is read again"
        logger.warning(cut, self.topic, self._position, offset)
        highest_id, self._state = self._state.highest_id, RegistryState()
        self._state.highest_id = highest_id
        self._position, self._is_whole, self._number, self._needs_fence = 0, False, NOBODY, True
        self._counted.clear()
        return False

    def _fail(self, reason: str) -> None:
        with self._read:
            self.failure = reason
            self._read.notify_all()
        self._on_failure()

    def _wait_for(self, position: int, seconds: float) -> None:
        """Until everything before the position is read. A topic that is cut meanwhile may never have it."""
        with self._read:
            state = self._state
            is_there = self._read.wait_for(
                lambda: self._position >= position or self.failure is not None or self._state is not state, timeout=seconds
            )
            is_cut = self._state is not state
        if self.failure is not None:
            raise RegistryRefusal(STORE_FAILED, topic=self.topic, details=self.failure)
        if is_cut:
            self._refuse_as_cut()
        if not is_there:
            raise RegistryRefusal(STORE_SLOW, topic=self.topic, details=f"its end was not read within {seconds:.0f} s")

    def _wait_for_end(self, seconds: float) -> None:
        """Until everything is read that is in the topic now."""
        self._wait_for(Topics(self.client).end_offsets(self.topic, [PARTITION], LATEST)[PARTITION], seconds)

    # Writing.

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Entry]], None]]:
        """Of all writers here one at a time; what it reads meanwhile is all that was ever written. Yields the function that
        stores records and returns when they count; `RegistryRefusal` otherwise."""
        with self._pen:
            self._take_pen()
            yield self._write

    def repair(self) -> None:
        """Writes again what void records of a replaced writer would hide; costs nothing if there are none."""
        with self._pen:
            if not self._needs_fence and self._is_writer():
                self._write(())

    def _is_writer(self) -> bool:
        with self._read:
            return self._state.writer == self._number

    def _take_pen(self) -> None:
        if self._needs_fence:
            self._wait_for_end(WRITE_SECONDS_MAX)
            if self._number != NOBODY and not self._is_writer():
                self._refuse_as_replaced()
            self._fence()
        elif not self._is_writer():
            self._refuse_as_replaced()
        with self._read:
            foreign = self._state.foreign_offset
        if foreign > self._number:
            details = f"another program wrote to it, at offset {foreign}: stop that, then restart this registry"
            raise RegistryRefusal(NOT_THE_WRITER, topic=self.topic, details=details)

    def _refuse_as_replaced(self) -> None:
        with self._read:
            number = self._state.writer
        details = f"another registry began to write, at offset {number}; restart this one to take over again"
        raise RegistryRefusal(NOT_THE_WRITER, topic=self.topic, details=details)

    def _refuse_as_cut(self) -> None:
        details = "records of it were lost, in an unclean election or a broker's restoration, and it is read again; try again"
        raise RegistryRefusal(STORE_SLOW, topic=self.topic, details=details)

    def _fence(self) -> None:
        with self._read:
            entry = self._state.noop()
        (offset,) = self._produce([entry], (FENCE, b"1"))
        # Set before it is waited for: our own records are told from others' by it.
        self._number, self._needs_fence = offset, False
        self._wait_for(offset + 1, WRITE_SECONDS_MAX)
        logger.info("writes to %s as number %d", self.topic, offset)
        with self._read:
            highest = self._state.noop()
        if highest != entry:  # ids were given out between reading the end and the fence, which has replaced who said so
            self._write([highest])

    def _write(self, entries: Sequence[Entry]) -> None:
        with self._read:
            repairs, number = self._state.repairs(), self._number
        if number == NOBODY:
            self._refuse_as_cut()
        if not repairs and not entries:
            return
        offsets = self._produce([*repairs, *entries], (WRITER, str(number).encode()))
        self._wait_for(offsets[-1] + 1, WRITE_SECONDS_MAX)
        with self._read:
            counted, is_cut = [self._counted.pop(offset, False) for offset in offsets], self._number != number
        if is_cut:
            self._refuse_as_cut()
        if not all(counted):
            self._refuse_as_replaced()

    def _produce(self, entries: Sequence[Entry], header: tuple[str, bytes]) -> list[int]:
        """The records' offsets. Where one is not acknowledged its fate is unknown: the pen is gone."""
        offsets: list[int] = []
        delivery = self._delivery = self._delivery or Delivery(self.client, self.topic, PRODUCER_SETTINGS)

        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(int(message.offset() or 0))
            elif delivery.failure is None:
                delivery.failure = error

        for key, value in entries:
            delivery.send(value, key, PARTITION, headers=[header], on_delivery=note)
        delivery.settle()
        if delivery.failure is None:
            return offsets
        delivery.finish()
        self._delivery, self._needs_fence = None, True
        code = STORE_SLOW if delivery.failure.code() == KafkaError._MSG_TIMED_OUT else STORE_FAILED
        raise RegistryRefusal(code, topic=self.topic, details=delivery.cause())
