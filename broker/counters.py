"""What the broker counts while it works: plain integers that the loop's thread adds to, and that
`broker/metrics` reads when somebody asks.

An addition costs some ten nanoseconds; nothing is formatted, locked or looked up by name before a scrape. Every key is one of a
fixed set (API keys, error codes, reasons) or a topic that exists: no peer can make a table grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

API_KEYS_MAX = 128  # Kafka's keys reach 92; framing refuses what is not offered before anything is counted

# From a flush on a fast disk to one that makes an operator get up.
FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Traffic:
    """What clients brought to and took from one partition, since the broker was started."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


class Histogram:
    """How often a value fell into each of a few ranges; `counts` has one place more than `bounds`, for what is beyond."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class NetworkCounters:
    """Connections and the loop's time. `closed` and `refused` count by reason: one word each, from the server's own code."""

    __slots__ = ("accepted", "busy_seconds", "closed", "connections", "held_bytes", "refused")

    def __init__(self) -> None:
        self.accepted = 0
        self.connections = 0
        self.closed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.held_bytes = 0  # of requests that are only partly here, and of answers that nobody takes
        self.busy_seconds = 0.0


class Counters:
    """Everything that is counted beside the state itself."""

    __slots__ = ("deleted", "errors", "fast_lane", "fetch_lane", "flushes", "network", "requests")

    def __init__(self) -> None:
        self.requests = [0] * API_KEYS_MAX  # by API key
        self.fast_lane = 0  # of these, produce requests that took it
        self.fetch_lane = 0  # the same for fetch requests
        self.errors: Counter[tuple[int, int]] = Counter()  # by API key and error code
        self.flushes = Histogram(FLUSH_SECONDS)
        self.deleted = Traffic()  # of partitions that are gone, so that totals never fall
        self.network = NetworkCounters()
