"""One reading shared by all concurrent callers (single flight): twenty browsers or scrapers cost as much as one.

`begin` does not wait. It returns what to wait for: the reading under way, the one that has just ended, or a new one that it
starts in its own thread. How long to wait, and whether the previous result will do until then, is up to the caller. So a source
that hangs is asked once; the reading continues after the last caller gives up, and the next caller may find it done. Failures are
kept like answers.

A caller that will not wait may let the reading begin a little later; it begins at once when a caller comes that will.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedReading(Generic[Value]):
    """The result of a reading that ended at `at` and took `seconds`: a value or an error."""

    at: float
    seconds: float
    value: Value | None = None
    error: Exception | None = None

    def result(self) -> Value:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None if that is what was read


@dataclass(frozen=True, slots=True)
class ReadingUnderWay(Generic[Value]):
    """A reading asked for at `began_at`; `ended` may be set already. `is_awaited` ends the delay before it."""

    began_at: float
    ended: Future[EndedReading[Value]]
    is_awaited: Event


class SharedReading(Generic[Value]):
    """Thread-safe; `read` runs in one thread at a time. `clock` counts seconds."""

    def __init__(self, read: Callable[[], Value], *, max_age_seconds: float, clock: Callable[[], float], name: str) -> None:
        self.name = name
        self.last: EndedReading[Value] | None = None
        self._read = read
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._lock = Lock()
        self._under_way: ReadingUnderWay[Value] | None = None

    def begin(self, delay_seconds: float = 0.0) -> ReadingUnderWay[Value]:
        """What to wait for; a result is read again when it is `max_age_seconds` old. A delay is for callers that do not wait."""
        with self._lock:
            if self._under_way is not None:
                if not delay_seconds:
                    self._under_way.is_awaited.set()
                return self._under_way
            begun: ReadingUnderWay[Value] = ReadingUnderWay(self._clock(), Future(), Event())
            if self.last is not None and self.age(self.last) < self._max_age_seconds:
                begun.ended.set_result(self.last)
                return begun
            self._under_way = begun
        Thread(target=self._run, args=(begun, delay_seconds), name=self.name, daemon=True).start()
        return begun

    def age(self, ended: EndedReading[Value]) -> float:
        """Seconds since it ended."""
        return self._clock() - ended.at

    def _run(self, begun: ReadingUnderWay[Value], delay_seconds: float) -> None:
        begun.is_awaited.wait(delay_seconds)
        value, failure, began_at = None, None, self._clock()
        try:
            value = self._read()
        except Exception as error:  # kept, and raised for each caller
            failure = error
        with self._lock:
            now = self._clock()
            ended = self.last = EndedReading(at=now, seconds=now - began_at, value=value, error=failure)
            self._under_way = None
        begun.ended.set_result(ended)
