"""A clock for tests, which advance it instead of sleeping."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only on request; with `tick_ms`, also at each reading of `monotonic`, so that a time slice ends."""

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
        """As if the wall clock were set."""
        self._now_ms += milliseconds
