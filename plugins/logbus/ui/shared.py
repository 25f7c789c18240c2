"""One answer for many who ask: read once, kept for some seconds, never read twice at the same time.

Twenty browsers that are open cost as much as one. What has become too old is read anew beside the requests; whoever asks then
waits for it, but not long after the reading began: then he gets the answer before, as long as that is not older than a minute.
So an open page never waits for a broker that is slow or down; only who comes first, or after a pause, does. Failures are kept
like answers. A look that needs several readings begins them all before it waits for the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

Value = TypeVar("Value")

KEPT_SECONDS = 5.0  # half of what pages wait between two looks
STALE_SECONDS_MAX = 60.0  # older than this is nobody's answer, even while the next is being read
PATIENCE_SECONDS = 0.2  # since a reading began, of those for whom there is an older answer; what is well has answered by then
THREAD_NAME = "logbus-pages"


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


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A reading that began at `began_at`; `done` is set when it has left its outcome."""

    began_at: float
    done: Event


class Shared(Generic[Value]):
    """`read` may raise; its error is everybody's. `clock` counts seconds."""

    def __init__(self, read: Callable[[], Value], clock: Callable[[], float], patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._read = read
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._lock = Lock()
        self._under_way: UnderWay | None = None
        self._last: Outcome[Value] | None = None

    def begin(self) -> None:
        """Begins to read what is too old, and waits for nothing: for those who will `get` it, after something else."""
        last = self._last
        if last is None or self._age(last) >= KEPT_SECONDS:
            self._begin_reading(last)

    def get(self) -> Value:
        """The value as it was a few seconds ago at the most, or the one before while it is read anew."""
        last = self._last
        if last is None or self._age(last) >= KEPT_SECONDS:
            is_useless = last is None or self._age(last) > STALE_SECONDS_MAX
            reading = self._begin_reading(last)
            reading.done.wait(None if is_useless else self._patience_left(reading))
            last = self._last
        assert last is not None, "a reading always leaves an outcome"
        return last.result()

    def before(self) -> Value | None:
        """What was read last, however old; None where nothing was, or it failed. For guesses alone."""
        return None if self._last is None else self._last.value

    def _begin_reading(self, seen: Outcome[Value] | None) -> UnderWay:
        """One that began after `seen` was."""
        with self._lock:
            if self._under_way is not None:
                return self._under_way
            reading = UnderWay(self._clock(), Event())
            if self._last is not seen:  # somebody has read it since we looked
                reading.done.set()
                return reading
            self._under_way = reading
        Thread(target=self._read_anew, args=(reading,), name=THREAD_NAME, daemon=True).start()
        return reading

    def _read_anew(self, reading: UnderWay) -> None:
        value, failure = None, None
        try:
            value = self._read()
        except Exception as error:  # kept for everybody, raised for each
            failure = error
        with self._lock:
            self._last = Outcome(self._clock(), value, failure)
            self._under_way = None
        reading.done.set()

    def _patience_left(self, reading: UnderWay) -> float:
        return max(0.0, reading.began_at + self._patience_seconds - self._clock())

    def _age(self, outcome: Outcome[Value]) -> float:
        return self._clock() - outcome.at
