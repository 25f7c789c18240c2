"""What the broker counts while it works, what is currently wrong with it, and the guard around everything that belongs to one
partition, one connection or one periodic task: it fails alone, is logged once, and is retried; the process continues.

To count costs some ten nanoseconds; nothing is formatted, locked or looked up by name before a scrape. Every key is one of a
fixed set (API keys, error codes, reasons) or an existing topic: no peer can make a table grow.

`attempt` is that guard. A failure stays in `troubles`, which /health and the metrics show, until the same thing succeeds. An
exception that is neither an OSError nor one of the broker's own errors is a defect: it is logged with its traceback and counted.

This guard must not be used between a write to a log and the bookkeeping that follows it: there the partition itself goes offline
(`PartitionLog.append`), because what its file holds is no longer known.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping

from logbus_broker import errors, logs

_API_KEYS_MAX = 128  # Kafka's keys go up to 92; framing rejects unsupported ones before anything is counted

# From a flush on a fast disk to one that pages an operator.
_FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Traffic:
    """What clients have written to and read from one partition since the broker started."""

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
    """How often a value fell into each of a few ranges; `counts` has one more entry than `bounds`, for larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class NetworkCounters:
    """Connections and the loop's time. `closed`, `refused` and `refused_logins` count by reason: one word each, from the server's
    own code."""

    __slots__ = (
        "accepted",
        "busy_seconds",
        "certificates",
        "closed",
        "connections",
        "held_bytes",
        "logins",
        "refused",
        "refused_logins",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.connections = 0
        self.closed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.logins = 0
        self.refused_logins: Counter[str] = Counter()
        self.held_bytes = 0  # of incomplete requests, and of answers that peers do not read
        self.busy_seconds = 0.0
        self.certificates: dict[str, float] = {}  # by listener, when it expires, in seconds since the epoch


class Counters:
    """Everything that is counted in addition to the state itself."""

    __slots__ = ("deleted", "errors", "fast_path", "fetch_fast_path", "flushes", "network", "requests")

    def __init__(self) -> None:
        self.requests = [0] * _API_KEYS_MAX  # by API key
        self.fast_path = 0  # produce requests handled by it, included in `requests`
        self.fetch_fast_path = 0  # the same for fetch requests
        self.errors: Counter[tuple[int, int]] = Counter()  # by API key and error code
        self.flushes = Histogram(_FLUSH_SECONDS)
        self.deleted = Traffic()  # of deleted partitions, so that totals never decrease
        self.network = NetworkCounters()


# What is currently wrong with this broker, and the guard around everything that belongs to one partition, one connection or
# one periodic task: it fails alone, is logged once, and is retried; the process continues.


logger = logging.getLogger("broker.health")

_EXPECTED = (errors.BrokerError, OSError)


class Health:
    """All methods run on the loop's thread."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}
        self.defects = 0  # unexpected exceptions since the start

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is failing at the moment, each with its latest reason."""
        return self._troubles

    def attempt(self, what: str, action: Callable[[], object]) -> bool:
        """Run `action`; returns whether it succeeded. `what` is its readable name: "the checkpoint", "retention of clicks-0"."""
        try:
            action()
        except Exception as error:
            self.fails(what, error)
            return False
        self.succeeds(what)
        return True

    def fails(self, what: str, error: BaseException) -> None:
        """Note a failure. Only the first of consecutive failures with the same reason is logged."""
        reason = str(error) or type(error).__name__
        is_news = self._troubles.get(what) != reason
        self._troubles[what] = reason
        if not isinstance(error, _EXPECTED):
            self.defect(what, error)
        elif is_news:
            logger.error("%s failed: %s", what, reason)

    def succeeds(self, what: str) -> None:
        """What failed before works again, or no longer exists."""
        if self._troubles and self._troubles.pop(what, None) is not None:
            logger.info("%s works again", what)

    def defect(self, what: str, error: BaseException) -> None:
        """Count and log an unexpected exception."""
        self.defects += 1
        logs.log_bug("%s failed", what, error=error)
