"""What a page reads, shared by all who look at it: read once, kept for some seconds, never read twice at the same time.

A value that is too old is read again in a thread of its own. Requests wait for it, but only briefly, and not at all if the last
reading showed that it would be in vain: then they get the previous value, unless that is older than a minute. So an open page
never waits for a broker that is slow or down; only the first request does, or one after a pause. A request that needs several
readings starts them all before it waits for one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import Generic, TypeVar

from logbus.shared_reading import EndedReading, ReadingUnderWay, SharedReading

Value = TypeVar("Value")

REFRESH_SECONDS = 10.0  # how often an open page asks again
KEPT_SECONDS = REFRESH_SECONDS / 2
# After a pause, the first request gets a value of up to a minute ago. Its page asks again this soon: the next is there then.
SOON_SECONDS = 1.0
STALE_SECONDS_MAX = 60.0  # an older value is not returned, even while the next is being read
# Counted from the start of a reading, for requests with an older value to return. A few pipelines have been read by then; fifty
# topics of eight partitions take twice that: not worth the wait, since the page's next refresh brings them anyway.
PATIENCE_SECONDS = 0.1
# A reading that took this long did not compute, but waited for a broker or a warehouse that was down (half of the pages' time
# limit for a broker). The next may be quick again: who has just started the broker should not be shown that it is down.
DOWN_SECONDS = 2.0
# A reading that no request waits for begins this much later: by then those that came together have their answers. Threads share
# one interpreter lock, and a thread that computes keeps it for 5 ms at a time, while an answer passes from thread to thread ten
# times: twenty browsers that came at once waited until all was read, for up to half a second.
ANSWERS_FIRST_SECONDS = 0.2
THREAD_NAME = "logbus-pages"


class PageReading(Generic[Value]):
    """`read` may raise; every caller gets its error. `clock` counts seconds."""

    def __init__(
        self,
        read: Callable[[], Value],
        clock: Callable[[], float],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        answers_first_seconds: float = ANSWERS_FIRST_SECONDS,
    ) -> None:
        self._shared = SharedReading(read, max_age_seconds=KEPT_SECONDS, clock=clock, name=THREAD_NAME)
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._answers_first_seconds = answers_first_seconds

    def begin(self) -> None:
        """Starts reading if the value is too old, and does not wait: for callers that `get` it after something else."""
        self._begin(self._shared.last)

    def get(self) -> Value:
        """The value, a few seconds old at most, or the previous one while it is read again."""
        before = self._shared.last
        if before is not None and self._shared.age(before) < KEPT_SECONDS:
            return before.result()
        begun = self._begin(before)
        wait([begun.ended], self._patience_left(begun, before))
        ended = begun.ended.result() if begun.ended.done() else before
        assert ended is not None, "without an answer of before, it is waited for"
        return ended.result()

    def fresh(self) -> Value:
        """The value, a few seconds old at most, however long that takes: for readings that are made from this one."""
        return self._shared.begin().ended.result().result()

    def refresh_seconds(self) -> float:
        """How soon the page that just got the value should ask again."""
        last = self._shared.last
        is_from_before_a_pause = last is not None and self._shared.age(last) > REFRESH_SECONDS + KEPT_SECONDS
        return SOON_SECONDS if is_from_before_a_pause else REFRESH_SECONDS

    def has_answer(self) -> bool:
        """Whether requests may get an earlier value while it is read."""
        before = self._shared.last
        return before is not None and not self._is_too_old(before)

    def before(self) -> Value | None:
        """The last value read, however old; None if there is none, or the reading failed. For guesses only."""
        last = self._shared.last
        return None if last is None else last.value

    def _begin(self, before: EndedReading[Value] | None) -> ReadingUnderWay[Value]:
        is_awaited = before is None or self._is_too_old(before) or self._is_worth_waiting(before)
        return self._shared.begin(0.0 if is_awaited else self._answers_first_seconds)

    def _patience_left(self, begun: ReadingUnderWay[Value], before: EndedReading[Value] | None) -> float | None:
        """How long to wait; None if only the value being read will do."""
        if before is None or self._is_too_old(before):
            return None
        return max(0.0, begun.began_at + self._patience_seconds - self._clock()) if self._is_worth_waiting(before) else 0.0

    def _is_too_old(self, before: EndedReading[Value]) -> bool:
        return self._shared.age(before) > STALE_SECONDS_MAX

    def _is_worth_waiting(self, before: EndedReading[Value]) -> bool:
        """Whether the next reading may end within our patience, judged by the last one."""
        return before.error is not None or not self._patience_seconds < before.seconds < DOWN_SECONDS
