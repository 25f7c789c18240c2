"""Reads exactly the offsets [start, end) of one partition, or fails saying which are missing. No group, no commit, no reset.

A stock consumer is forgiving: if an offset is gone it jumps elsewhere, if no data comes it waits.
Here a deleted record is an error (`auto.offset.reset=error`), the end of the log before the end of the range is
an error (`enable.partition.eof`), and so is a broker that stays silent. Offsets without a record are skipped:
transaction markers and compaction leave such holes, and the caller decides whether holes are allowed.

`SingleRecords` reads scattered records: the last one of a short range of offsets, in many partitions at once. The record before a
window's boundary is what the boundary is recognised by. A catch-up of 84 hours asks for two such records per partition and hour,
so one consumer serves all of them: starting a client costs more than the reads. It fetches little more than it is asked for and
does not wait long for more data, because the next question has to wait for a fetch in flight.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from operator import lt
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.errors import AccessDenied, BrokerUnavailable, RecordsLost, ShortRead
from logbus.kafka.client import READ_COMMITTED, SLOW_SECONDS_MAX, Client
from logbus.kafka.errors import MISSING, explain
from logbus.waiting import Say, announced, say_nothing

# How long a broker may send nothing at all before the read fails; a rolling restart takes less.
STALL_SECONDS_MAX = SLOW_SECONDS_MAX

# Records per `consume` call: enough to make the call's overhead negligible, few enough for a worker's memory at any record size.
MESSAGES_PER_CALL = 10_000
BYTES_PER_CALL = 4 * 1024 * 1024
MESSAGES_FIRST_CALL = 500  # their size is not known yet
MESSAGE_BYTES_MIN = 100  # what a message object takes in addition to its value
CALL_SECONDS_MAX = 0.1  # a call returns when it has all its records, or after this

CONSUMER_CONFIG: Mapping[str, Any] = {
    "group.id": "logbus-exact-reader",  # the client insists on one; no group is ever joined, no offset committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    # At the end of a log the fetch in flight waits for more, and the next partition for that fetch.
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 32_768,  # memory of one reader
    # How long the client pauses fetching when that is full. In its default, a second, the queue runs empty: records of 2 kB that
    # took 15 us of work each were measured at 24,000 a second instead of 50,000.
    "fetch.queue.backoff.ms": 10,
}
# For a few records here and there: the next range has to wait for the fetch that is in flight for the last one, which should
# bring little, and for the end of a pause that the client makes after every record.
SAMPLING_CONFIG: Mapping[str, Any] = {
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 5,
    "fetch.message.max.bytes": 16 * 1024,
    "fetch.queue.backoff.ms": 1,
}
SINGLE_CONFIG: Mapping[str, Any] = {
    **CONSUMER_CONFIG,
    **SAMPLING_CONFIG,
    "group.id": "logbus-single-records",
    "isolation.level": "read_uncommitted",  # a record is the same one whether its transaction commits or aborts
}

# The errors for a range whose first offset is not in the log.
OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
# What the client says at the offset after which there is nothing: nothing in the log, or nothing that this user may read.
AT_END = (KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED)
# Errors that waiting does not cure; the client retries after any other.
FINAL = (*MISSING, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG)


@contextmanager
def exact_consumer(
    client_config: Mapping[str, Any], isolation_level: str = READ_COMMITTED, overrides: Mapping[str, Any] = {}
) -> Iterator[Consumer]:
    """A consumer for `read_with`; one serves many ranges, one after another."""
    consumer = Client(client_config).consumer({**CONSUMER_CONFIG, **overrides, "isolation.level": isolation_level})
    try:
        yield consumer
    finally:
        consumer.close()


def read_range(
    client_config: Mapping[str, Any],
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    *,
    isolation_level: str = READ_COMMITTED,
    **options: Any,
) -> Iterator[Message]:
    """The records of [start_offset, end_offset), read with a new consumer."""
    with exact_consumer(client_config, isolation_level) as consumer:
        yield from read_with(consumer, topic, partition, start_offset, end_offset, **options)


def read_with(
    consumer: Consumer, topic: str, partition: int, start_offset: int, end_offset: int, **options: Any
) -> Iterator[Message]:
    """The records of [start_offset, end_offset) in order; see `read_lists`."""
    for messages, _ in read_lists(consumer, topic, partition, start_offset, end_offset, **options):
        yield from messages


def read_lists(
    consumer: Consumer,
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    *,
    stall_seconds_max: float = STALL_SECONDS_MAX,
    say: Say = say_nothing,
) -> Iterator[tuple[list[Message], list[int]]]:
    """The records of [start_offset, end_offset) in order, each once, in lists of about `BYTES_PER_CALL` with their offsets.

    Raises `RecordsLost` (start_offset has been deleted), `ShortRead` (the log ends before end_offset), `AccessDenied` or
    `BrokerUnavailable` (silence).
    """
    if end_offset <= start_offset:
        return
    consumer.assign([TopicPartition(topic, partition, start_offset)])
    next_offset, messages_max = start_offset, MESSAGES_FIRST_CALL
    heard_at = time.monotonic()
    while next_offset < end_offset:
        count = min(messages_max, end_offset - next_offset)
        with announced(f"records of {topic}-{partition}", say):
            while not (consumed := consumer.consume(count, timeout=CALL_SECONDS_MAX)):
                if time.monotonic() - heard_at > stall_seconds_max:
                    break
        for messages, error in split_at_errors(consumed):
            if messages:
                messages_max = call_size(messages)
                offsets = ascending(messages, next_offset, end_offset)
                next_offset = min(messages[-1].offset() + 1, end_offset)
                if offsets:
                    yield messages[: len(offsets)], offsets
                heard_at = time.monotonic()  # the caller's work on the records does not count as the broker's silence
            if error is not None:
                if error.error().code() in AT_END and error.offset() >= end_offset:
                    next_offset = end_offset  # no record in the offsets before the end: transaction markers, say
                raise_for(error.error(), topic, partition, next_offset, end_offset)
        if time.monotonic() - heard_at > stall_seconds_max:
            raise BrokerUnavailable(
                f"received nothing from {topic}-{partition} for {stall_seconds_max:g} s at offset {next_offset} of "
                f"[{start_offset}, {end_offset}): check that the broker runs, then load the window again"
            )


def split_at_errors(consumed: list[Message]) -> Iterator[tuple[list[Message], Message | None]]:
    """The result of one call, split at its errors: the messages before an error with that error, the last ones with None."""
    start = 0
    if any(map(Message.error, consumed)):
        for index, message in enumerate(consumed):
            if message.error() is not None:
                yield consumed[start:index], message
                start = index + 1
    yield consumed[start:] if start else consumed, None


def ascending(messages: list[Message], next_offset: int, end_offset: int) -> list[int]:
    """The offsets of the messages before end_offset. A fingerprint proves nothing unless each comes exactly once and in order."""
    offsets = list(map(Message.offset, messages))
    is_dense = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    if offsets[0] < next_offset or not (is_dense or all(map(lt, offsets, islice(offsets, 1, None)))):
        raise ShortRead(f"the client returned offsets out of order after {next_offset}: {offsets[0]} to {offsets[-1]}")
    return offsets if offsets[-1] < end_offset else offsets[: bisect_left(offsets, end_offset)]


def call_size(messages: list[Message]) -> int:
    """How many messages of this size the next call may ask for."""
    mean = sum(map(len, messages)) // len(messages) + MESSAGE_BYTES_MIN
    return max(1, min(MESSAGES_PER_CALL, BYTES_PER_CALL // mean))


def raise_for(error: KafkaError, topic: str, partition: int, next_offset: int, end_offset: int) -> None:
    """Raises what a client's error means for a range not yet read to its end. Other errors are ignored: the client retries."""
    if next_offset >= end_offset:
        return
    missing = f"{topic}-{partition} [{next_offset}, {end_offset})"
    if error.code() == KafkaError._PARTITION_EOF:
        raise ShortRead(f"the log ends before the range does: {missing} is missing; was the broker's data replaced or truncated?")
    if error.code() in OUT_OF_RANGE:
        raise RecordsLost(f"{missing} cannot be read from its start: retention has deleted it ({error.str()})", lost=[missing])
    if error.fatal() or error.code() in FINAL:
        cause = explain(error, topic, needs="Read")
        raise cause if isinstance(cause, AccessDenied) else ShortRead(f"reading {missing} failed: {cause}")


class SingleRecords:
    """One consumer for one broker or cluster; made on first use, used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def last(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Message]:
        """By partition the last record in the offsets [start, end); none where the range holds no record, or the log does not
        contain `start`. `BrokerUnavailable` where the broker does not answer in time.

        A missing record is asked for once more: a client was seen to report the end of a partition that it had reached for one
        question only after the next question.
        """
        last = self._read(topic, ranges)
        return last | self._read(topic, {part: range_ for part, range_ in ranges.items() if part not in last})

    def _read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Message]:
        ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
        if not ends:
            return {}
        consumer, last = self._consumer, dict[int, Message]()
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in ends])
        heard_at = time.monotonic()
        try:
            while ends:
                for message in consumer.consume(len(ends), timeout=CALL_SECONDS_MAX):
                    heard_at = time.monotonic()
                    if self._take(message, ends, last) and ends:  # or the rest of it is fetched during the wait for others
                        consumer.incremental_unassign([TopicPartition(topic, message.partition())])
                self.client.raise_if_silent(heard_at, topic)
        finally:
            consumer.unassign()
        return last

    def _take(self, message: Message, ends: dict[int, int], last: dict[int, Message]) -> bool:
        """Keeps a record, and drops its partition from `ends` if no later record can be in its range; returns whether it did."""
        partition, offset, error = message.partition(), message.offset(), message.error()
        if partition not in ends or offset is None:
            return False
        if error is None:
            if offset < ends[partition]:
                last[partition] = message
            if offset + 1 >= ends[partition]:
                del ends[partition]
        elif error.code() == KafkaError._PARTITION_EOF or error.code() in OUT_OF_RANGE:
            del ends[partition]
        elif error.fatal() or error.code() in FINAL:
            raise self.client.explain(error, str(message.topic()), needs="Read")
        return partition not in ends

    @cached_property
    def _consumer(self) -> Consumer:
        return self.client.consumer(SINGLE_CONFIG)
