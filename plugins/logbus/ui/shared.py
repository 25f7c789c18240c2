"""One answer for many who ask: read once, kept for some seconds, never read twice at the same time.

Twenty browsers that are open cost as much as one. Whoever comes while somebody reads gets the last answer, if that is not too
old, instead of waiting; so a broker that is down holds up one request at a time. Failures are kept like answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")

KEPT_SECONDS = 5.0  # half of what pages wait between two looks
STALE_SECONDS_MAX = 60.0  # older than this is nobody's answer, even while the next is being read


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """What came of a reading that ended at `at`: a value or an error."""

    at: float
    value: Value | None
    error: Exception | None

    def result(self) -> Value:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None where that is what was read


class Shared(Generic[Value]):
    """`read` may raise; its error is everybody's. `clock` counts seconds."""

    def __init__(self, read: Callable[[], Value], clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS) -> None:
        self._read = read
        self._clock = clock
        self._kept_seconds = kept_seconds
        self._reading = Lock()
        self._last: Outcome[Value] | None = None

    def get(self) -> Value:
        """The value as it was a few seconds ago at the most, or while somebody reads it anew, the one before."""
        last = self._last
        if last is not None and self._age(last) < self._kept_seconds:
            return last.result()
        must_wait = last is None or self._age(last) > STALE_SECONDS_MAX
        if not self._reading.acquire(blocking=must_wait):
            assert last is not None
            return last.result()
        try:
            return self._read_unless_done(last).result()
        finally:
            self._reading.release()

    def forget(self) -> None:
        """The next one who asks waits for a new answer."""
        self._last = None

    def _read_unless_done(self, before: Outcome[Value] | None) -> Outcome[Value]:
        if self._last is not None and self._last is not before:
            return self._last  # somebody else read it while we waited
        try:
            value, error = self._read(), None
        except Exception as reason:  # kept for everybody, raised for each
            value, error = None, reason
        self._last = Outcome(self._clock(), value, error)
        return self._last

    def _age(self, outcome: Outcome[Value]) -> float:
        return self._clock() - outcome.at
