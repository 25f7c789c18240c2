"""One reading for all who want it at once, with a deadline for each who waits.

Whoever comes while a reading is under way waits for that one; whoever comes shortly after one has ended gets its outcome.
Nobody waits longer than his deadline: the reading goes on in its own thread, is not begun a second time, and the next one to
come may find it done. So a broker that hangs is asked once, and twenty scrapers cost as much as one.

A reading that fails has a reason from a short table, because it becomes a label; the message, which may name hosts, goes to
the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from logbus.errors import (
    AccessDenied,
    BrokerUnavailable,
    LedgerMissing,
    LogbusError,
    TopicMissing,
    TopicRecreated,
    WarehouseUnavailable,
)

logger = logging.getLogger("logbus.exporter")

OK, NOT_READ, TIMEOUT, DEFECT = "ok", "not_read", "timeout", "defect"
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (AccessDenied, "refused"),
    (BrokerUnavailable, "unreachable"),
    (WarehouseUnavailable, "unreachable"),
    (LedgerMissing, "no_ledger"),
    (TopicMissing, "topic_missing"),
    (TopicRecreated, "topic_recreated"),
    (LogbusError, "refused"),
)

Value = TypeVar("Value")


def reason_of(error: Exception) -> str:
    return next((reason for kind, reason in REASONS if isinstance(error, kind)), DEFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Value]):
    """What a reading gave: a value, or None with the reason. `seconds` is how long it took."""

    value: Value | None = None
    reason: str = OK
    seconds: float | None = None


class Shared(Generic[Value]):
    """The readings of one target. Safe to use from many threads; `read` runs in one at a time."""

    def __init__(
        self, target: str, read: Callable[[], Value], *, max_age_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.target = target
        self._read = read
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: Future[Outcome[Value]] | None = None
        self._last: Outcome[Value] = Outcome(reason=NOT_READ)
        self._read_at: float | None = None

    @property
    def last(self) -> Outcome[Value]:
        """The last outcome, without asking."""
        return self._last

    def begin(self) -> Future[Outcome[Value]]:
        """The outcome to wait for: of a reading under way, of one that has just ended, or of a new one."""
        with self._lock:
            if self._running is not None:
                return self._running
            outcome: Future[Outcome[Value]] = Future()
            if self._read_at is not None and self._clock() - self._read_at < self._max_age_seconds:
                outcome.set_result(self._last)
                return outcome
            self._running = outcome
        threading.Thread(target=self._run, args=(outcome,), name=f"read-{self.target}", daemon=True).start()
        return outcome

    def _run(self, waited_for: Future[Outcome[Value]]) -> None:
        began_at = self._clock()
        outcome = self._outcome(began_at)
        with self._lock:
            self._last, self._read_at, self._running = outcome, self._clock(), None
        waited_for.set_result(outcome)

    def _outcome(self, began_at: float) -> Outcome[Value]:
        try:
            return Outcome(value=self._read(), seconds=self._clock() - began_at)
        except Exception as error:
            reason = reason_of(error)
            if reason != self._last.reason:  # once for each change, not at each scrape
                logger.warning("%s: %s", self.target, error, exc_info=reason == DEFECT)
            return Outcome(reason=reason, seconds=self._clock() - began_at)


def wait(outcome: Future[Outcome[Value]], seconds: float) -> Outcome[Value]:
    """The outcome, or `timeout` where it is not there in time."""
    try:
        return outcome.result(max(0.0, seconds))
    except TimeoutError:
        return Outcome(reason=TIMEOUT)
