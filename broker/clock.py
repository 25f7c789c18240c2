"""The one place that reads a clock. Everything else is handed a Clock, so tests jump time and never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and retention; monotonic time for deadlines, which must not jump when the wall clock does."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._started_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._started_ms) / 1000

    def advance_ms(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
