"""Reads exactly the offsets [start, end) of one partition, or fails saying which are missing. No group, no commit, no reset.

A stock consumer is made to be forgiving: where an offset is gone it jumps elsewhere, where nothing comes it waits.
Here a record that is gone is an error (`auto.offset.reset=error`), the end of the log before the end of the range is
an error (`enable.partition.eof`), and so is a broker that stays silent. Offsets without a record are passed over:
transaction markers and compaction leave such holes, and whether holes are allowed is the caller's to judge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.errors import BrokerUnavailable, RecordsLost, ShortRead

# How long nothing at all may come from a broker before we call it gone; a rolling restart takes less.
STALL_SECONDS_MAX = 60.0

# Records handed over at once: big enough that the call costs nothing, small enough to hold in memory.
MESSAGES_PER_CALL = 2_000
CALL_SECONDS_MAX = 0.1  # a call waits for all its records or for this

CONSUMER_CONFIG: Mapping[str, Any] = {
    "group.id": "logbus-exact-reader",  # the client insists on one; nothing is ever joined or committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,  # a range at the end of a log would otherwise wait half a second for its end
    "queued.max.messages.kbytes": 32_768,  # memory of one reader
}


@contextmanager
def exact_consumer(client_config: Mapping[str, Any], isolation_level: str = "read_committed") -> Iterator[Consumer]:
    """A consumer for `read_with`; one serves many ranges, one after another."""
    consumer = Consumer({**client_config, **CONSUMER_CONFIG, "isolation.level": isolation_level})
    try:
        yield consumer
    finally:
        consumer.close()


def read_range(
    client_config: Mapping[str, Any], topic: str, partition: int, start_offset: int, end_offset: int, **options: Any
) -> Iterator[Message]:
    """The records of [start_offset, end_offset), with a consumer of its own."""
    with exact_consumer(client_config, **options) as consumer:
        yield from read_with(consumer, topic, partition, start_offset, end_offset)


def read_with(
    consumer: Consumer,
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    *,
    stall_seconds_max: float = STALL_SECONDS_MAX,
) -> Iterator[Message]:
    """The records of [start_offset, end_offset) in order.

    Raises `RecordsLost` (start_offset is not there any more), `ShortRead` (the log ends before end_offset) or
    `BrokerUnavailable` (silence).
    """
    if end_offset <= start_offset:
        return
    consumer.assign([TopicPartition(topic, partition, start_offset)])
    next_offset = start_offset
    heard_at = time.monotonic()
    while next_offset < end_offset:
        for message in consumer.consume(min(MESSAGES_PER_CALL, end_offset - next_offset), timeout=CALL_SECONDS_MAX):
            if message.error() is not None:
                next_offset = end_offset if at_end(message, end_offset) else next_offset
                raise_for(message.error(), topic, partition, next_offset, end_offset)
                continue
            heard_at = time.monotonic()
            if message.offset() < end_offset:
                yield message
            next_offset = min(message.offset() + 1, end_offset)
            if next_offset == end_offset:
                break
        if time.monotonic() - heard_at > stall_seconds_max:
            raise BrokerUnavailable(
                f"nothing came from {topic}-{partition} for {stall_seconds_max:g} s at offset {next_offset} of "
                f"[{start_offset}, {end_offset}): check that the broker runs, then load the window again"
            )


def at_end(message: Message, end_offset: int) -> bool:
    """The log ends at or behind the range's end: the offsets in between hold no record (a transaction marker, say)."""
    return bool(message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= end_offset)


def raise_for(error: KafkaError, topic: str, partition: int, next_offset: int, end_offset: int) -> None:
    """What a client's error means for a range that is not read to its end. Others are the client's to mend: it tries again."""
    if next_offset >= end_offset:
        return
    missing = f"{topic}-{partition} [{next_offset}, {end_offset})"
    if error.code() == KafkaError._PARTITION_EOF:
        raise ShortRead(f"the log ends before the range does: {missing} is not there; was the broker's data replaced or cut?")
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RecordsLost(f"{missing} cannot be read from its start: retention has deleted it ({error.str()})", lost=[missing])
    if error.fatal() or error.code() in FINAL:
        raise ShortRead(f"reading {missing} failed: {error.str()}")


FINAL = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._BAD_MSG,
)
