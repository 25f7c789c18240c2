"""One reading shared by all concurrent callers (single flight): twenty browsers or scrapers cost as much as one.

`begin` does not wait. It returns what to wait for: the reading under way, the one that has just ended, or a new one that it
starts in its own thread. How long to wait, and whether the previous result will do until then, is up to the caller. So a source
that hangs is asked once; the reading continues after the last caller gives up, and the next caller may find it done. Failures are
kept like answers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedReading(Generic[Value]):
    """The result of a reading that ended at `at`: a value or an error."""

    at: float
    value: Value | None = None
    error: Exception | None = None

    def result(self) -> Value:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None if that is what was read


@dataclass(frozen=True, slots=True)
class ReadingUnderWay(Generic[Value]):
    """A reading that began at `began_at`; `ended` may be set already."""

    began_at: float
    ended: Future[EndedReading[Value]]


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

    def begin(self) -> ReadingUnderWay[Value]:
        """What to wait for; a result is not read again until it is `max_age_seconds` old."""
        with self._lock:
            if self._under_way is not None:
                return self._under_way
            begun: ReadingUnderWay[Value] = ReadingUnderWay(self._clock(), Future())
            if self.last is not None and self.age(self.last) < self._max_age_seconds:
                begun.ended.set_result(self.last)
                return begun
            self._under_way = begun
        Thread(target=self._run, args=(begun,), name=self.name, daemon=True).start()
        return begun

    def age(self, ended: EndedReading[Value]) -> float:
        """Seconds since it ended."""
        return self._clock() - ended.at

    def _run(self, begun: ReadingUnderWay[Value]) -> None:
        value, failure = None, None
        try:
            value = self._read()
        except Exception as error:  # kept, and raised for each caller
            failure = error
        with self._lock:
            ended = self.last = EndedReading(at=self._clock(), value=value, error=failure)
            self._under_way = None
        begun.ended.set_result(ended)
