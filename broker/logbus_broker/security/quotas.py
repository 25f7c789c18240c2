"""Client quotas by Kafka's rules: whose limit applies to a client, how much it has used, and how long it is held up.

Bytes and request time are rates over a window of samples: what exceeds the limit is paid back by a pause that brings the rate of
the window down to it. Created and deleted partitions are taken from a bucket that fills at the limit's rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from logbus_broker.security.state import QuotaEntity, SecurityState

PRODUCER_BYTES, CONSUMER_BYTES = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATIONS = "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"
CLIENT_KEYS = frozenset({PRODUCER_BYTES, CONSUMER_BYTES, REQUEST_PERCENTAGE, CONTROLLER_MUTATIONS})
IP_KEYS = frozenset({CONNECTIONS})
_IDLE_WINDOWS = 6  # a usage not asked for in this many windows is forgotten: client ids are the clients' to choose
_USAGES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and the share of the clients that use it together: `owner` is what tells one usage from another."""

    rate: float
    owner: tuple[str | None, str | None]


# In Kafka's order of choice. Each: the names under "user" and "client-id" that are looked for (a function of the client's own),
# and whether clients of different users, or with different ids, have usages of their own.
_CHOICES: tuple[tuple[bool | None, bool | None], ...] = (
    (True, True),
    (True, False),
    (True, None),
    (False, True),
    (False, False),
    (False, None),
    (None, True),
    (None, False),
)


def limit_of(quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, user: str, client_id: str) -> Limit | None:
    """The limit for `key` that applies to this client; None if there is none. True in `_CHOICES` is the client's own name, False
    the default's, None that the entity does not name this part."""
    for by_user, by_client in _CHOICES:
        parts = []
        if by_user is not None:
            parts.append(("user", user if by_user else None))
        if by_client is not None:
            parts.append(("client-id", client_id if by_client else None))
        values = quotas.get(frozenset(parts))
        if values is not None and key in values:
            owner = None if by_user is None else user, None if by_client is None else client_id
            return Limit(values[key], owner)
    return None


class Rate:
    """A rate over the last `windows` samples of `window_seconds` each, as Kafka measures it: while fewer have passed, as if the
    others had been empty."""

    __slots__ = ("_samples", "_window_seconds", "_windows", "used_at")

    def __init__(self, windows: int, window_seconds: float) -> None:
        self._windows = windows
        self._window_seconds = window_seconds
        self._samples: deque[list[float]] = deque()  # each: when it began, and its sum
        self.used_at = 0.0

    def record(self, amount: float, now: float) -> None:
        self.used_at = now
        if not self._samples or now >= self._samples[-1][0] + self._window_seconds:
            self._samples.append([now, 0.0])
        self._samples[-1][1] += amount

    def seconds_above(self, rate: float, now: float) -> float:
        """How long nothing may be used until the window's rate is down to `rate`; 0 if it is not above."""
        while self._samples and self._samples[0][0] <= now - self._windows * self._window_seconds:
            self._samples.popleft()
        if not self._samples:
            return 0.0
        elapsed = max(now - self._samples[0][0], 0.0)
        missing = max(self._windows - 1 - int(elapsed / self._window_seconds), 0)
        elapsed += missing * self._window_seconds
        total = sum(sample for _, sample in self._samples)
        return max(total / rate - elapsed, 0.0)


class TokenBucket:
    """Filled at `rate` a second up to what the window holds. A request may take more than is there, but only from a bucket that
    has something left; then it has debts."""

    __slots__ = ("_at", "_tokens", "used_at")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._at: float | None = None
        self.used_at = 0.0

    def fill(self, rate: float, burst: float, now: float) -> float:
        """How many tokens there are now."""
        self.used_at = now
        self._tokens = burst if self._at is None else min(burst, self._tokens + (now - self._at) * rate)
        self._at = now
        return self._tokens

    def take(self, count: float) -> None:
        self._tokens -= count

    def seconds_below(self, rate: float) -> float:
        """How long until the debts are paid."""
        return max(-self._tokens / rate, 0.0)


class ClientQuotas:
    """What clients have used of their limits. All methods run on the loop's thread; times are those of the monotonic clock."""

    def __init__(self, state: Callable[[], SecurityState], windows: int, window_seconds: float) -> None:
        self._state = state
        self._windows = windows
        self._window_seconds = window_seconds
        self._rates: dict[tuple[str, tuple[str | None, str | None]], Rate] = {}
        self._buckets: dict[tuple[str | None, str | None], TokenBucket] = {}

    @property
    def is_active(self) -> bool:
        """Whether anybody has a limit at all."""
        return bool(self._state().quotas)

    def record(self, key: str, principal: str, client_id: str | None, amount: float, now: float) -> float:
        """Count what a client used; returns for how many seconds it is to be held up."""
        limit = self._limit(key, principal, client_id)
        if limit is None:
            return 0.0
        rate = self._rate(key, limit.owner, now)
        rate.record(amount, now)
        return rate.seconds_above(limit.rate, now)

    def seconds_above(self, key: str, principal: str, client_id: str | None, now: float) -> float:
        """For how many seconds the client is over its limit, without counting anything."""
        limit = self._limit(key, principal, client_id)
        return 0.0 if limit is None else self._rate(key, limit.owner, now).seconds_above(limit.rate, now)

    def connected(self, address: str, now: float) -> float:
        """Count a new connection from an address; returns for how many seconds it is to be held up."""
        for name in (address, None):
            values = self._state().quotas.get(frozenset({("ip", name)}))
            if values is not None:
                rate = self._rate(CONNECTIONS, (address, None), now)
                rate.record(1.0, now)
                return rate.seconds_above(values[CONNECTIONS], now)
        return 0.0

    def take_mutations(self, principal: str, client_id: str | None, count: int, now: float, *, strict: bool) -> float | None:
        """Take `count` partitions to be created or deleted from the client's bucket; returns for how many seconds the client is
        to be held up. With `strict`, None if the bucket is empty: then nothing is taken."""
        limit = self._limit(CONTROLLER_MUTATIONS, principal, client_id)
        if limit is None:
            return 0.0
        self._forget(self._buckets, now)
        bucket = self._buckets.setdefault(limit.owner, TokenBucket())
        tokens = bucket.fill(limit.rate, limit.rate * self._windows * self._window_seconds, now)
        if strict and tokens <= 0:
            return None
        bucket.take(count)
        return bucket.seconds_below(limit.rate)

    def seconds_without_mutations(self, principal: str, client_id: str | None, now: float) -> float:
        """For how many seconds the client's bucket stays empty."""
        limit = self._limit(CONTROLLER_MUTATIONS, principal, client_id)
        if limit is None or limit.owner not in self._buckets:
            return 0.0
        bucket = self._buckets[limit.owner]
        bucket.fill(limit.rate, limit.rate * self._windows * self._window_seconds, now)
        return bucket.seconds_below(limit.rate)

    def _limit(self, key: str, principal: str, client_id: str | None) -> Limit | None:
        quotas = self._state().quotas
        return limit_of(quotas, key, principal.removeprefix("User:"), client_id or "") if quotas else None

    def _rate(self, key: str, owner: tuple[str | None, str | None], now: float) -> Rate:
        rate = self._rates.get((key, owner))
        if rate is None:
            self._forget(self._rates, now)
            rate = self._rates[key, owner] = Rate(self._windows, self._window_seconds)
        return rate

    def _forget(self, usages: dict[Any, Any], now: float) -> None:
        """Those that no longer matter, once there are many."""
        if len(usages) >= _USAGES_MAX:
            before = now - _IDLE_WINDOWS * self._windows * self._window_seconds
            for owner in [owner for owner, usage in usages.items() if usage.used_at < before]:
                del usages[owner]
