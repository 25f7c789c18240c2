"""A clock for tests, which jump it and never sleep."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told to; with `tick_ms`, also whenever somebody looks at it, so that a slice of time ends."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self.tick_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        self.advance_ms(self.tick_ms)
        return self._elapsed_ms / 1000

    def advance_ms(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._elapsed_ms += milliseconds

    def jump_ms(self, milliseconds: int) -> None:
        """Somebody sets the wall clock."""
        self._now_ms += milliseconds
