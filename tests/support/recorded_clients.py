"""Stock clients of real brokers that record their requests and answers as the simulation's clients do (tests/sim/histories.py),
so that the same checker judges both.

A client library decides on its own when to start a new run of batch sequences: librdkafka bumps its producer's epoch after some
failovers, and sends again batches whose fate it cannot know. So whether a record had to be stored exactly once is determined at
the end, from the batches that hold it (`with_sessions`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.sim.histories import Event, History
from tests.support.stored_batches import StoredBatch

QUIET = {"log_level": 0}  # refused connections are intended here
PATIENT = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "retry.backoff.max.ms": 200}


def new_history() -> History:
    return History(lambda: time.monotonic_ns() // 1000)


class Recorder:
    """A client in its own thread, which ends with the `with` block; the thread's exception is raised there."""

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.history = history
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def run(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error


class RecordedProducer(Recorder):
    """Sends unique values to random partitions of a topic, about `rate` per second."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        seed: int,
        rate: int,
        **settings: object,
    ) -> None:
        super().__init__(name, history)
        defaults = {"enable.idempotence": True, "acks": "all", "linger.ms": 2, "message.timeout.ms": int(PATIENCE_SECONDS * 1000)}
        self._producer = Producer({"bootstrap.servers": bootstrap, "client.id": name, **QUIET, **PATIENT, **defaults, **settings})
        self._topic = topic
        self._partitions = partitions
        self._chance = Random(seed)
        self._rate = rate
        self._promise = "replicated" if str({**defaults, **settings}["acks"]) == "all" else "written"
        self.acknowledged_at: dict[int, float] = defaultdict(float)  # by partition: the last time

    def run(self) -> None:
        number, began = 0, time.monotonic()
        while not self._stop.is_set():
            number += 1
            self._send(number)
            self._producer.poll(0)
            ahead = number / self._rate - (time.monotonic() - began)
            if ahead > 0.002:
                self._producer.poll(0)
                self._stop.wait(ahead)
            elif ahead < -1.0:
                began = time.monotonic() - number / self._rate  # do not catch up on what an outage held back
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _send(self, number: int) -> None:
        partition, value = self._chance.randrange(self._partitions), f"{self.name}:{number}"
        place = {"topic": self._topic, "partition": partition}
        self.history.add("invoke", client=self.name, op=number, values=[value], promise=self._promise, **place)

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.history.add("unknown", client=self.name, op=number, error=str(error))
            else:
                self.acknowledged_at[partition] = time.monotonic()
                self.history.add("ok", client=self.name, op=number, offset=offset_of(message))

        while True:
            try:
                self._producer.produce(self._topic, value.encode(), partition=partition, on_delivery=told)
                return
            except BufferError:
                self._producer.poll(0.05)


def offset_of(message: Message) -> int:
    """Where a record was stored; -1 if the library does not know: the answer was lost, and a later batch of the producer was
    acknowledged before this one was sent again, which proves that it is stored."""
    offset = message.offset()
    return -1 if offset is None else offset


class RecordedConsumer(Recorder):
    """Reads all partitions of a topic by assignment, from the start."""

    def __init__(self, name: str, history: History, bootstrap: str, topic: str, *, partitions: int, **settings: object) -> None:
        super().__init__(name, history)
        reading = {"group.id": name, "enable.auto.commit": False, "auto.offset.reset": "error", "fetch.wait.max.ms": 100}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "check.crcs": True, **QUIET, **PATIENT, **reading, **settings})
        self._topic = topic
        self._positions = dict.fromkeys(range(partitions), 0)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in self._positions])

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                self.take(self._consumer.consume(500, 0.2))
        finally:
            self._consumer.close()

    def take(self, messages: Sequence[Message]) -> None:
        """Record what was received, as one poll per partition."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for message in messages:
            error = message.error()
            if error is None:
                found[message.partition() or 0].append((message.offset() or 0, (message.value() or b"").decode()))
            elif not error.retriable() and error.code() in FATAL:
                raise KafkaException(error)
        for partition, records in found.items():
            place = {"topic": self._topic, "partition": partition}
            start, end = self._positions[partition], records[-1][0] + 1
            self.history.add("poll", client=self.name, position=start, records=records, next=end, **place)
            self._positions[partition] = end


FATAL = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._FATAL)


def drain(history: History, bootstrap: str, topic: str, *, partitions: int) -> None:
    """Read every partition from start to end with a last consumer, once everything is over."""
    reader = RecordedConsumer("last", history, bootstrap, topic, partitions=partitions)
    consumer = reader._consumer
    try:
        ends: dict[int, tuple[int, int]] = {}
        for partition in range(partitions):
            ends[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_SECONDS)

        def is_at_the_end() -> bool:
            reader.take(consumer.consume(500, 0.5))
            return all(reader._positions[partition] >= end for partition, (_, end) in ends.items())

        wait_until(is_at_the_end, what=f"the reader of {ends}", poll_seconds=0)
    finally:
        consumer.close()
    for partition, (start, _) in ends.items():
        history.add("drained", client="last", topic=topic, partition=partition, start=start, end=reader._positions[partition])


def with_sessions(events: Iterable[Event], topic: str, stored: Mapping[int, Sequence[StoredBatch]]) -> list[Event]:
    """The history, with the run of batch sequences in which each send was stored, and whether in only one."""
    sessions: dict[tuple[int, str], list[str]] = defaultdict(list)
    for partition, batches in stored.items():
        for batch in batches:
            for value in batch.values:
                sessions[partition, value].append(batch.session)
    places: dict[tuple[str, int], tuple[int, str]] = {}
    told: list[Event] = []
    for event in events:
        if event["event"] == "invoke" and event["topic"] == topic:
            places[event["client"], event["op"]] = event["partition"], event["values"][0]
        if event["event"] in ("ok", "unknown") and (place := places.get((event["client"], event["op"]))):
            found = sessions.get(place, [])
            told.append(
                {**event, "exactly_once": len(set(found)) <= 1 and "" not in found, "session": found[0] if found else None}
            )
        else:
            told.append(event)
    return told


def without_writes(events: Iterable[Event], since_us: int, until_us: int) -> dict[int, float]:
    """By partition, the longest time in seconds within a span in which nothing was acknowledged."""
    longest: dict[int, float] = {}
    last: dict[int, int] = {}
    partitions: dict[tuple[str, int], int] = {}
    for event in events:
        if event["event"] == "invoke":
            partitions[event["client"], event["op"]] = event["partition"]
            last.setdefault(event["partition"], event["at"])
        elif event["event"] == "ok":
            partition = partitions[event["client"], event["op"]]
            if event["at"] >= since_us and last[partition] <= until_us:
                longest[partition] = max(longest.get(partition, 0.0), (event["at"] - max(last[partition], since_us)) / 1e6)
            last[partition] = event["at"]
    for partition, at in last.items():
        if at < until_us:
            longest[partition] = max(longest.get(partition, 0.0), (until_us - max(at, since_us)) / 1e6)
    return longest


def names_of(anomalies: Iterable[Any]) -> str:
    """The first few, for a failed test's message."""
    return "\n".join(str(one) for one in list(anomalies)[:20])
