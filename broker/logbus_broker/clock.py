"""The only place that reads a clock. Everything else is passed a Clock, so tests can jump in time and never sleep."""

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

    monotonic = staticmethod(time.monotonic)  # not wrapped in a Python function: it is called twice per request

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class UnhurriedClock:
    """Wall time for code that deletes by age: a system clock set a year ahead must not delete everything at once. This clock
    follows a jump back immediately, and a jump ahead at twice the speed of time: a jump of one day is caught up after a day, in
    which an operator may notice."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = clock.now_ms()
        self._asked = clock.monotonic()

    def now_ms(self) -> int:
        now = self._clock.monotonic()
        self._now_ms = min(self._clock.now_ms(), self._now_ms + round((now - self._asked) * 2000))
        self._asked = now
        return self._now_ms
