"""How far a pipeline has come in a partition: what lies before its first need may go as far as it is concerned. Pure.

A pipeline's windows form a chain, so what it still needs is told in stretches of offsets, in order: hours that nobody has
frozen between two windows, windows that are not loaded and audited, and at the end whatever comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from logbus.windows.model import FrozenWindow, OffsetRange, instant_text
from logbus.windows.retention_model import DELETE, Anchor, PipelineChain, Reach, RetentionPolicy

OTHER_TOPIC = "the topic was made again; `logbus pipeline rebase {pipeline}` begins anew on it"

# Behind every offset there is.
ENDLESS = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The offsets [first, end) that a pipeline still needs, why, and when the hour ended that they belong to.

    `window` is set where nobody is at work on it, so that it may be given up.
    """

    first: int
    end: int
    why: str
    ended_at: datetime | None = None
    window: FrozenWindow | None = None


def reach(chain: PipelineChain, partition: int, start: int, policy: RetentionPolicy, now: datetime) -> Reach:
    """The pipeline's first need in a log that begins at `start`.

    A need that is gone as a whole is counted as lost and passed over: holding back what is left would not bring it back.
    One that has held back for too long is given up, if the policy says so.
    """
    lost = 0
    given_up = []
    for need in needs(chain, partition):
        if need.window is not None and gives_up(policy, need.window, now):
            given_up.append(need.window)
            continue
        lost += max(0, min(need.end, start) - need.first)
        if need.end > start:
            break
    return Reach(offset=need.first, why=need.why, ended_at=need.ended_at, lost=lost, given_up=tuple(given_up))


def needs(chain: PipelineChain, partition: int) -> Iterator[Need]:
    """In the order of their offsets; the last is endless."""
    if chain.is_other_topic:
        yield Need(first=0, end=ENDLESS, why=OTHER_TOPIC.format(pipeline=chain.pipeline))
        return
    anchor = chain.anchors.get(partition, Anchor(offset=0, at=None))
    offset, reached_at = anchor.offset, anchor.at
    for window in chain.windows:
        part = range_of(window, partition)
        if part is not None:
            if part.start_offset > offset:
                why = f"hours before {instant_text(window.interval.start)} are not frozen"
                yield Need(
                    first=offset, end=part.start_offset, why=why, ended_at=next_end(reached_at, chain) or window.interval.start
                )
            is_running = window.id in chain.running
            why_not = unsettled(window, is_running) if part.count else None
            if why_not:
                idle = None if is_running else window
                yield Need(first=part.readable_from, end=part.end_offset, why=why_not, ended_at=window.interval.end, window=idle)
            offset = max(offset, part.end_offset)
        reached_at = window.interval.end
    yield Need(first=offset, end=ENDLESS, why="the hours behind it are not frozen", ended_at=next_end(reached_at, chain))


def next_end(reached_at: datetime | None, chain: PipelineChain) -> datetime | None:
    """When the hour ends that comes next."""
    return None if reached_at is None else reached_at + chain.interval


def range_of(window: FrozenWindow, partition: int) -> OffsetRange | None:
    return next((part for part in window.ranges if part.partition == partition), None)


def unsettled(window: FrozenWindow, is_running: bool) -> str | None:
    """Why a pipeline still needs the window's records; None where it does not. An unknown head can never be audited."""
    name = f"window {window.interval}"
    if is_running:
        return f"{name} is being loaded"
    if window.loaded_attempt is None:
        return f"{name} is not loaded"
    if window.audited_at is None and not window.head_unknown:
        return f"{name} is loaded, but not audited"
    return None


def gives_up(policy: RetentionPolicy, window: FrozenWindow, now: datetime) -> bool:
    overdue = overdue_since(policy, window.interval.end, now)
    return policy.when_overdue == DELETE and overdue is not None and overdue > policy.max_hold


def overdue_since(policy: RetentionPolicy, ended_at: datetime | None, now: datetime) -> timedelta | None:
    """How long the policy would have let an hour go that ended then; a limit by size counts from the hour's end."""
    return None if ended_at is None else max(timedelta(0), now - ended_at - (policy.retain or timedelta(0)))
