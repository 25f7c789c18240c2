"""Loads on a broker: as much as it takes, or a steady one whose latency shows what else the broker was doing.

The steady producer has a timetable. A request that could not be sent in time, because the last answer was late, counts from when
it was due: a broker that stalls for a second makes all requests of that second late, not only the one that was in flight.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.protocol.batch import read_header

from benchmarks.costs.wire import Connection, Refused, check_produced, fetch_frame, fetched, produce_frame, whole_batches
from benchmarks.figures import Figure, figure
from benchmarks.peers.server import Server
from benchmarks.processes import scheduled_seconds

IN_FLIGHT = 5  # requests in flight, the default of Kafka's producer
REQUESTS_PER_SECOND = 250  # of the steady producer
ROUNDS_PER_ROUND = 2  # when CPU seconds are compared: many short turns, because a machine's pace changes
POLL_MS = 200  # the steady consumer's longest poll, and so how long it takes to stop
SHARES = {"median": 0.5, "99th percentile": 0.99, "latest": 1.0}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; values must not be empty."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def acknowledged_beside(work: str, busy_ms: Sequence[Sequence[float]], quiet_ms: Sequence[Sequence[float]]) -> Iterator[Figure]:
    """The steady producer's latencies during the work against those before it, one sequence per round for each."""
    for name, share in SHARES.items():
        yield figure(
            f"producer beside {work}: acknowledged, {name}",
            "ms",
            ours=[percentile(one, share) for one in busy_ms],
            peer=[percentile(one, share) for one in quiet_ms],
            against="logbus, before",
        )


def create_topic(bootstrap: str, topic: str, **config: str) -> None:
    """With one partition; `config` has underscores for dots. Returns once the topic can be read: Apache Kafka answers earlier."""
    client = AdminClient({"bootstrap.servers": bootstrap})  # kept: a client that is garbage-collected drops its requests
    wanted = NewTopic(topic, num_partitions=1, config={name.replace("_", "."): value for name, value in config.items()})
    client.create_topics([wanted], request_timeout=PATIENCE_SECONDS)[topic].result(PATIENCE_SECONDS)
    wait_until(lambda: _answers(bootstrap, topic), what=f"topic {topic}")


def _answers(bootstrap: str, topic: str) -> bool:
    with Connection(bootstrap) as connection:
        try:
            fetched(connection.ask(fetch_frame(topic, 0, wait_ms=0)), topic)
        except Refused:
            return False
    return True


def alter_topic(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Sets one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.incremental_alter_configs([resource], request_timeout=PATIENCE_SECONDS)[resource].result(PATIENCE_SECONDS)


def produce_all(bootstrap: str, topic: str, batches: Sequence[bytes], *, requests: int) -> None:
    """Sends the batches in turn, `requests` of them, as fast as they are acknowledged; returns once consumers can see them."""
    frames = [produce_frame(topic, batch) for batch in batches[:requests]]
    waiting = 0
    with Connection(bootstrap) as connection:
        for frame in islice(cycle(frames), requests):
            if waiting == IN_FLIGHT:
                check_produced(connection.receive(), topic)
                waiting -= 1
            connection.send(frame)
            waiting += 1
        for _ in range(waiting):
            check_produced(connection.receive(), topic)
        records = sum(read_header(batch).record_count for batch in islice(cycle(batches), requests))
        wait_visible(connection, topic, records)


def wait_visible(connection: Connection, topic: str, end_offset: int) -> None:
    """Waits until a fetch returns the last record below `end_offset`."""
    frame = fetch_frame(topic, end_offset - 1, wait_ms=POLL_MS, bytes_max=1)
    while not fetched(connection.ask(frame), topic):
        pass


def cpu_per_million(server: Server, records: int, work: Callable[[], None]) -> float:
    """CPU seconds that the work costs the server, per million of its records."""
    before = scheduled_seconds(server.pid)
    work()
    return (scheduled_seconds(server.pid) - before) * 1_000_000 / records


class _Steady(ABC):
    """A thread that works until its `with` ends, and whose failure is raised there."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped = True
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            with Connection(self.bootstrap) as connection:
                self.work(connection)
        except BaseException as failure:
            self._failure = failure

    @abstractmethod
    def work(self, connection: Connection) -> None:
        """Works until `_stopped` is set."""


class SteadyProducer(_Steady):
    """Sends one batch REQUESTS_PER_SECOND times a second and records when each was due and how long it then took."""

    def __init__(self, bootstrap: str, topic: str, batch: bytes) -> None:
        super().__init__(bootstrap, topic)
        self._frame = produce_frame(topic, batch)
        self._noted: list[tuple[float, float]] = []

    def work(self, connection: Connection) -> None:
        due = time.monotonic()
        while not self._stopped:
            began = wait_for(due, clock=time.monotonic, sleep=time.sleep)
            check_produced(connection.ask(self._frame), self.topic)
            self._noted.append((due, time.monotonic() - began))
            due += 1 / REQUESTS_PER_SECOND

    def latencies_ms(self, begin: float, end: float) -> list[float]:
        """The latencies of requests that were due between two instants of the monotonic clock."""
        return [seconds * 1000 for due, seconds in self._noted if begin <= due < end]


def wait_for(due: float, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> float:
    """Sleeps until `due`; returns from when the latency of the next request counts: the instant after the sleep, or `due` if that
    is already past."""
    ahead = due - clock()
    if ahead <= 0:
        return due
    sleep(ahead)
    return clock()


class SteadyConsumer(_Steady):
    """Follows the topic as a consumer does, by long polls."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self.offset = 0

    def work(self, connection: Connection) -> None:
        while not self._stopped:
            answer = connection.ask(fetch_frame(self.topic, self.offset, wait_ms=POLL_MS))
            for batch in whole_batches(fetched(answer, self.topic)):
                self.offset = read_header(batch).next_offset
