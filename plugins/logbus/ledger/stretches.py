"""What a pipeline has not done of a topic yet, in stretches of offsets. Pure.

A pipeline's windows form a chain, so what is not done in each partition is returned in order: hours between two windows that
are not frozen, windows that the caller considers undone (not loaded; not audited), and at the end everything after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from logbus.model import FrozenWindow, Interval, OffsetRange, instant_text

OTHER_TOPIC = (
    "the topic was made again, or this is another broker: `logbus pipeline rebase {pipeline}` tells which, and begins anew on it"
)

# Greater than every possible offset.
ENDLESS = 2**63

INTERVALS_REMEMBERED = 2_000  # cached as texts: more hours than are usually behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where a pipeline's windows begin in a partition; `at` None means before all time."""

    offset: int
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChain:
    """A pipeline's windows on the topic as it is now, oldest first. `running` are the ids of those that an attempt is loading.

    `left_out` is the span of the windows before the first of these: they are adjacent, and all of them are done. `begins_at` is
    where the chain begins, unless that is before all time: the pipeline's start, or the end of its windows on a topic that was
    recreated since. `former` are the windows of such topics that are not loaded.
    """

    pipeline: str
    interval: timedelta
    anchors: Mapping[int, Anchor]
    windows: tuple[FrozenWindow, ...]
    running: frozenset[int] = frozenset()
    is_other_topic: bool = False
    left_out: Interval | None = None
    begins_at: datetime | None = None
    former: tuple[FrozenWindow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The offsets [first, end) that are not done, why, and when the hour to which they belong ended.

    `window` is set if no attempt is at work on it, so that it may be given up.
    """

    first: int
    end: int
    why: str
    ended_at: datetime | None = None
    window: FrozenWindow | None = None

    def within(self, start: int, end: int) -> int:
        """How many of its offsets are in [start, end)."""
        return max(0, min(self.end, end) - max(self.first, start))


# Why a window is not done, given whether an attempt is loading it; None if it is done.
Undone = Callable[[FrozenWindow, bool], str | None]


def undone_stretches(chain: PipelineChain, partition: int, undone: Undone) -> Iterator[Stretch]:
    """The stretches of a partition in the order of their offsets; the last is endless."""
    if chain.is_other_topic:
        yield Stretch(first=0, end=ENDLESS, why=OTHER_TOPIC.format(pipeline=chain.pipeline))
        return
    anchor = anchor_of(chain, partition)
    offset, reached_at = anchor.offset, anchor.at
    for window in chain.windows:
        part = range_of(window, partition)
        if part is not None:
            if part.start_offset > offset:
                why = f"hours before {instant_text(window.interval.start)} are not frozen"
                ended_at = next_end(reached_at, chain) or window.interval.start
                yield Stretch(first=offset, end=part.start_offset, why=why, ended_at=ended_at)
            is_running = window.id in chain.running
            why_not = undone(window, is_running) if part.count else None
            if why_not:
                idle, ended_at = None if is_running else window, window.interval.end
                yield Stretch(first=part.readable_from, end=part.end_offset, why=why_not, ended_at=ended_at, window=idle)
            offset = max(offset, part.end_offset)
        reached_at = window.interval.end
    yield Stretch(first=offset, end=ENDLESS, why="the hours after it are not frozen", ended_at=next_end(reached_at, chain))


def anchor_of(chain: PipelineChain, partition: int) -> Anchor:
    """Where its windows begin in the partition; a partition added since begins with its first record."""
    return chain.anchors.get(partition, Anchor(offset=0, at=None))


def tail_of(chain: PipelineChain, partition: int) -> int:
    """The last frozen boundary in the partition."""
    ends = (part.end_offset for window in chain.windows for part in window.ranges if part.partition == partition)
    return max(ends, default=anchor_of(chain, partition).offset)


def begins_at(anchors: Iterable[Anchor]) -> datetime | None:
    """Where a chain with these anchors begins; None for before all time."""
    instants = [anchor.at for anchor in anchors]
    known = [at for at in instants if at is not None]
    return min(known) if known and len(known) == len(instants) else None


def next_end(reached_at: datetime | None, chain: PipelineChain) -> datetime | None:
    """When the next hour ends."""
    return None if reached_at is None else reached_at + chain.interval


def range_of(window: FrozenWindow, partition: int) -> OffsetRange | None:
    return next((part for part in window.ranges if part.partition == partition), None)


@lru_cache(maxsize=INTERVALS_REMEMBERED)
def text_of(interval: Interval) -> str:
    """Cached: all partitions of all pipelines have the same hours."""
    return str(interval)


def not_loaded(window: FrozenWindow, is_running: bool) -> str | None:
    return f"window {text_of(window.interval)} is not loaded" if window.loaded_attempt is None else None


def not_settled(window: FrozenWindow, is_running: bool) -> str | None:
    """Why a pipeline still needs the window's records; None if it does not. An unknown head can never be audited."""
    if is_running:
        return f"window {window.interval} is being loaded"
    if window.loaded_attempt is not None and window.audited_at is None and not window.head_unknown:
        return f"window {window.interval} is loaded, but not audited"
    return not_loaded(window, is_running)
