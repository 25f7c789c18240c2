"""The records of the streams benchmark: requests as JSON of about 140 bytes, of 200 hosts, in the order in which they arrive.
One in a hundred arrives up to three hours after it happened."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from random import Random

from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS

from benchmarks.ingest_data import HOUR_MS, STARTED

COLUMNS = {"at": "timestamptz", "host": "text", "path": "text", "status": "integer", "bytes": "bigint", "agent": "text"}
HOSTS = 200
LATE_SHARE, LATE_MS_MAX = 0.01, 3 * HOUR_MS
AGENT = "curl/7.88.1 (x86_64-pc-linux-gnu)"


def requests(count: int, hours: int) -> Iterator[tuple[int, str]]:
    """When each arrived, in milliseconds, and the request; spread evenly over the hours."""
    start_ms, span_ms = int(STARTED.timestamp() * 1000), hours * HOUR_MS
    chance = Random(2011)
    for number in range(count):
        arrived_ms = start_ms + number * span_ms // count
        yield arrived_ms, request(arrived_ms, chance)


def request(arrived_ms: int, chance: Random) -> str:
    at_ms = arrived_ms - (int(chance.random() * LATE_MS_MAX) if chance.random() < LATE_SHARE else 0)
    return (
        f'{{"at": {at_ms}, "host": "web-{int(chance.random() * HOSTS)}", "path": "/articles/{int(chance.random() * 5000)}", '
        f'"status": 200, "bytes": {int(chance.random() * 60_000)}, "agent": "{AGENT}"}}'
    )


class SteadyProducer:
    """Sends requests at a rate, from the first `send_due` on: each sends what is due. Whoever is late with a call sends more
    the next time, and the lateness counts as the records' age."""

    def __init__(self, client: Mapping[str, str], topic: str, rate: int) -> None:
        self._producer = Producer({**client, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
        self._topic, self._rate, self._chance = topic, rate, Random(2011)
        self._began: float | None = None
        self._count_before = 0
        self.count = 0

    def send_due(self) -> None:
        if self._began is None:
            self._began, self._count_before = time.monotonic(), self.count
        self.send(int((time.monotonic() - self._began) * self._rate) - (self.count - self._count_before))

    def send(self, count: int) -> None:
        """At once."""
        for _ in range(count):
            stamp_ms = time.time_ns() // 1_000_000
            self._producer.produce(self._topic, request(stamp_ms, self._chance), timestamp=stamp_ms)
        self.count += count
        self._producer.poll(0)

    def age(self, visible: int) -> float:
        """How long ago the first record was due that is not among so many visible ones; 0 if there is none."""
        if self._began is None or visible >= self.count:
            return 0.0
        return time.monotonic() - self._began - (visible - self._count_before) / self._rate

    def flush(self) -> None:
        if self._producer.flush(PATIENCE_SECONDS):
            raise RuntimeError(f"the broker did not take all records in {PATIENCE_SECONDS:g} s")
