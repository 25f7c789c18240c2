"""What pages and the exporter read, shared by all who ask: read once, kept for some seconds, never read twice at the same time.

A value that is too old is read again in a thread of its own, by the first caller who asks; the others wait for the same reading.
So twenty browsers or scrapers cost as much as one, and a source that hangs is asked once: the reading continues after the last
caller gives up, and the next may find it done. Failures are kept like answers.

A page waits only briefly, and not at all if the last reading showed that it would be in vain: then it gets the previous value,
unless that is older than a minute. So an open page never waits for a broker that is slow or down; only the first request does, or
one after a pause. A request that needs several readings starts them all before it waits for one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from sqlalchemy import Engine

from logbus import errors

Value = TypeVar("Value")

REFRESH_SECONDS = 10.0  # how often an open page asks again
KEPT_SECONDS = REFRESH_SECONDS / 2
# After a pause, the first request gets a value of up to a minute ago. Its page asks again this soon: the next is there then.
SOON_SECONDS = 1.0
STALE_SECONDS_MAX = 60.0  # an older value is not returned, even while the next is being read
# Counted from the start of a reading, for requests with an older value to return. A few pipelines have been read by then; fifty
# topics of eight partitions take twice that: not worth the wait, since the page's next refresh brings them anyway.
PATIENCE_SECONDS = 0.1
# A reading that took this long did not compute, but waited for a broker or a warehouse that was down (half of the pages' timeout
# for a broker). The next may be quick again: who has just started the broker should not be shown that it is down.
DOWN_SECONDS = 2.0
# A reading that no request waits for begins this much later: by then those that came together have their answers. Threads share
# one interpreter lock, and a thread that computes keeps it for 5 ms at a time, while an answer passes from thread to thread ten
# times: twenty browsers that came at once waited until all was read, for up to half a second.
ANSWERS_FIRST_SECONDS = 0.2

OK, NOT_READ, TIMEOUT, DEFECT = "ok", "not_read", "timeout", "defect"
# A reason becomes a label of a metric: few values, and no message, which may name hosts.
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.AccessDenied, "refused"),
    (errors.BrokerUnavailable, "unreachable"),
    (errors.WarehouseUnavailable, "unreachable"),
    (errors.LedgerMissing, "no_ledger"),
    (errors.LedgerOutdated, "no_ledger"),
    (errors.TopicMissing, "topic_missing"),
    (errors.TopicRecreated, "topic_recreated"),
    (errors.LogbusError, "refused"),
)


def reason_of(error: Exception) -> str:
    return next((reason for kind, reason in REASONS if isinstance(error, kind)), DEFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Value]):
    """The result of a reading that ended at `at` and took `seconds`: a value or an error."""

    at: float
    seconds: float
    value: Value | None = None
    error: Exception | None = None

    def result(self) -> Value:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None if that is what was read

    @property
    def reason(self) -> str:
        return OK if self.error is None else reason_of(self.error)


@dataclass(frozen=True, slots=True)
class ReadingUnderWay(Generic[Value]):
    """A reading asked for at `began_at`; `ended` may be set already. `is_awaited` ends the delay before it."""

    began_at: float
    ended: Future[Outcome[Value]]
    is_awaited: Event

    def wait(self) -> Outcome[Value]:
        return self.ended.result()

    def wait_for(self, seconds: float) -> Outcome[Value] | None:
        """None if it does not end in time; the reading continues."""
        try:
            return self.ended.result(max(0.0, seconds))
        except TimeoutError:
            return None


class Reading(Generic[Value]):
    """`read` may raise; every caller gets its error. It runs in one thread at a time. `clock` counts seconds.

    The defaults are the pages'. Without `answers_first_seconds`, every reading begins at once.
    """

    def __init__(
        self,
        read: Callable[[], Value],
        clock: Callable[[], float],
        *,
        name: str = "logbus-pages",
        max_age_seconds: float = KEPT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        answers_first_seconds: float = ANSWERS_FIRST_SECONDS,
    ) -> None:
        self.name = name
        self.last: Outcome[Value] | None = None
        self._read = read
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        self._patience_seconds = patience_seconds
        self._answers_first_seconds = answers_first_seconds
        self._lock = Lock()
        self._under_way: ReadingUnderWay[Value] | None = None

    def begin(self) -> ReadingUnderWay[Value]:
        """What to wait for: the reading under way, the one that has just ended, or a new one if the value is too old."""
        return self._begin(self.last)

    def get(self) -> Value:
        """The value, a few seconds old at most, or the previous one while it is read again."""
        before = self.last
        if before is not None and self._age(before) < self._max_age_seconds:
            return before.result()
        under_way = self._begin(before)
        if before is None or self._is_too_old(before):
            return under_way.wait().result()
        patience = under_way.began_at + self._patience_seconds - self._clock() if self._is_worth_waiting(before) else 0.0
        return (under_way.wait_for(patience) or before).result()

    def fresh(self) -> Value:
        """The value, a few seconds old at most, however long that takes: for readings that are made from this one."""
        return self._start(0.0).wait().result()

    def refresh_seconds(self) -> float:
        """How soon the page that just got the value should ask again."""
        is_from_before_a_pause = self.last is not None and self._age(self.last) > REFRESH_SECONDS + KEPT_SECONDS
        return SOON_SECONDS if is_from_before_a_pause else REFRESH_SECONDS

    def has_answer(self) -> bool:
        """Whether requests may get an earlier value while it is read."""
        return self.last is not None and not self._is_too_old(self.last)

    def before(self) -> Value | None:
        """The last value read, however old; None if there is none, or the reading failed. For guesses only."""
        return None if self.last is None else self.last.value

    def _begin(self, before: Outcome[Value] | None) -> ReadingUnderWay[Value]:
        is_awaited = before is None or self._is_too_old(before) or self._is_worth_waiting(before)
        return self._start(0.0 if is_awaited else self._answers_first_seconds)

    def _start(self, delay_seconds: float) -> ReadingUnderWay[Value]:
        with self._lock:
            if self._under_way is not None:
                if not delay_seconds:
                    self._under_way.is_awaited.set()
                return self._under_way
            under_way: ReadingUnderWay[Value] = ReadingUnderWay(self._clock(), Future(), Event())
            if self.last is not None and self._age(self.last) < self._max_age_seconds:
                under_way.ended.set_result(self.last)
                return under_way
            self._under_way = under_way
        Thread(target=self._run, args=(under_way, delay_seconds), name=self.name, daemon=True).start()
        return under_way

    def _run(self, under_way: ReadingUnderWay[Value], delay_seconds: float) -> None:
        under_way.is_awaited.wait(delay_seconds)
        value, failure, began_at = None, None, self._clock()
        try:
            value = self._read()
        except Exception as error:  # kept, and raised for each caller
            failure = error
        with self._lock:
            now = self._clock()
            self.last = Outcome(at=now, seconds=now - began_at, value=value, error=failure)
            self._under_way = None
        under_way.ended.set_result(self.last)

    def _age(self, outcome: Outcome[Value]) -> float:
        return self._clock() - outcome.at

    def _is_too_old(self, before: Outcome[Value]) -> bool:
        return self._age(before) > STALE_SECONDS_MAX

    def _is_worth_waiting(self, before: Outcome[Value]) -> bool:
        """Whether the next reading may end within our patience, judged by the last one."""
        return before.error is not None or not self._patience_seconds < before.seconds < DOWN_SECONDS


class LazyEngine:
    """An engine that the first caller creates. Shortly after the warehouse did not answer, its error is raised without another
    try: several readings need the same engine, and each try takes as long as a connection's timeout."""

    def __init__(self, connect: Callable[[], Engine], clock: Callable[[], float], retry_seconds: float = KEPT_SECONDS) -> None:
        self._connect = connect
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._lock = Lock()
        self._engine: Engine | None = None
        self._failure: tuple[float, errors.UserError] | None = None

    def get(self) -> Engine:
        """`WarehouseUnavailable` if it does not answer the first caller; later ones find out with their query."""
        with self._lock:
            if self._engine is None:
                if self._failure is not None and self._clock() - self._failure[0] < self._retry_seconds:
                    raise self._failure[1]
                try:
                    self._engine = self._connect()
                except errors.UserError as error:
                    self._failure = self._clock(), error
                    raise
            return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
