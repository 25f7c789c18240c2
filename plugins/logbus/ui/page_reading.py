"""What a page reads, for all who look at it: read once, kept for some seconds, never read twice at the same time.

What has become too old is read anew beside the requests. They wait for it, but not long after the reading began: then the answer
is the one before, as long as that is not older than a minute. So an open page never waits for a broker that is slow or down; only
the first look does, or one after a pause. A look that needs several readings begins them all before it waits for one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import Generic, TypeVar

from logbus.shared_reading import EndedReading, ReadingUnderWay, SharedReading

Value = TypeVar("Value")

KEPT_SECONDS = 5.0  # half of what pages wait between two looks
STALE_SECONDS_MAX = 60.0  # older than this is no answer, even while the next is being read
# Since a reading began, of those for whom there is an older answer. A few pipelines have been read by then; fifty topics of eight
# partitions take a quarter of a second, and whoever waited for that would lose more than the page's next look brings anyway.
PATIENCE_SECONDS = 0.1
THREAD_NAME = "logbus-pages"


class PageReading(Generic[Value]):
    """`read` may raise; its error is everybody's. `clock` counts seconds."""

    def __init__(self, read: Callable[[], Value], clock: Callable[[], float], patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._shared = SharedReading(read, max_age_seconds=KEPT_SECONDS, clock=clock, name=THREAD_NAME)
        self._clock = clock
        self._patience_seconds = patience_seconds

    def begin(self) -> None:
        """Begins to read what is too old, and waits for nothing: for those who will `get` it, after something else."""
        self._shared.begin()

    def get(self) -> Value:
        """The value as it was a few seconds ago at the most, or the one before while it is read anew."""
        before = self._shared.last
        if before is not None and self._shared.age(before) < KEPT_SECONDS:
            return before.result()
        begun = self._shared.begin()
        wait([begun.ended], self._patience_left(begun, before))
        ended = begun.ended.result() if begun.ended.done() else before
        assert ended is not None, "without an answer of before, it is waited for"
        return ended.result()

    def before(self) -> Value | None:
        """What was read last, however old; None where nothing was, or it failed. For guesses alone."""
        last = self._shared.last
        return None if last is None else last.value

    def _patience_left(self, begun: ReadingUnderWay[Value], before: EndedReading[Value] | None) -> float | None:
        """None where only what is being read will do."""
        if before is None or self._shared.age(before) > STALE_SECONDS_MAX:
            return None
        return max(0.0, begun.began_at + self._patience_seconds - self._clock())
