"""A target of the exporter (broker, ledger, lag): one reading shared by concurrent scrapes, with a deadline for each scrape.

A reading that fails has a reason from a short table, because it becomes a label; the message, which may name hosts, is only
logged. A scrape whose deadline passes gets `timeout` for an unfinished reading; the reading continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from logbus.errors import (
    AccessDenied,
    BrokerUnavailable,
    LedgerMissing,
    LedgerOutdated,
    LogbusError,
    TopicMissing,
    TopicRecreated,
    WarehouseUnavailable,
)
from logbus.shared_reading import ReadingUnderWay, SharedReading

logger = logging.getLogger("logbus.exporter")

OK, NOT_READ, TIMEOUT, DEFECT = "ok", "not_read", "timeout", "defect"
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (AccessDenied, "refused"),
    (BrokerUnavailable, "unreachable"),
    (WarehouseUnavailable, "unreachable"),
    (LedgerMissing, "no_ledger"),
    (LedgerOutdated, "no_ledger"),
    (TopicMissing, "topic_missing"),
    (TopicRecreated, "topic_recreated"),
    (LogbusError, "refused"),
)

Value = TypeVar("Value")


def reason_of(error: Exception) -> str:
    return next((reason for kind, reason in REASONS if isinstance(error, kind)), DEFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Value]):
    """The result of a reading: a value, or None with the reason. `seconds` is how long it took."""

    value: Value | None = None
    reason: str = OK
    seconds: float | None = None


class TargetReading(Generic[Value]):
    """The readings of one target. Thread-safe."""

    def __init__(
        self, target: str, read: Callable[[], Value], *, max_age_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.target = target
        self._read = read
        self._clock = clock
        self._shared = SharedReading(self._outcome, max_age_seconds=max_age_seconds, clock=clock, name=f"read-{target}")

    @property
    def last(self) -> Outcome[Value]:
        """The last outcome, without a new reading."""
        return Outcome(reason=NOT_READ) if self._shared.last is None else self._shared.last.result()

    def begin(self) -> ReadingUnderWay[Outcome[Value]]:
        """A reading to `wait` for."""
        return self._shared.begin()

    def _outcome(self) -> Outcome[Value]:
        began_at = self._clock()
        try:
            return Outcome(value=self._read(), seconds=self._clock() - began_at)
        except Exception as error:
            reason = reason_of(error)
            if reason != self.last.reason:  # once per change, not at every scrape
                logger.warning("%s: %s", self.target, error, exc_info=reason == DEFECT)
            return Outcome(reason=reason, seconds=self._clock() - began_at)


def wait(begun: ReadingUnderWay[Outcome[Value]], seconds: float) -> Outcome[Value]:
    """The outcome, or `timeout` if it does not come in time."""
    try:
        return begun.ended.result(max(0.0, seconds)).result()
    except TimeoutError:
        return Outcome(reason=TIMEOUT)
