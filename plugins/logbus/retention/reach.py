"""How far a pipeline has come in a partition: what lies before its first need may go as far as it is concerned. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from logbus.ledger.stretches import PipelineChain, not_settled, undone_stretches
from logbus.model import FrozenWindow
from logbus.retention.model import DELETE, Reach, RetentionPolicy


def reach(chain: PipelineChain, partition: int, start: int, policy: RetentionPolicy, now: datetime) -> Reach:
    """The pipeline's first need in a log that begins at `start`.

    A need that is gone as a whole is counted as lost and passed over: holding back what is left would not bring it back.
    One that has held back for too long is given up, if the policy says so.
    """
    lost = 0
    given_up = []
    for need in undone_stretches(chain, partition, not_settled):
        if need.window is not None and gives_up(policy, need.window, now):
            given_up.append(need.window)
            continue
        lost += need.within(0, start)
        if need.end > start:
            break
    return Reach(offset=need.first, why=need.why, ended_at=need.ended_at, lost=lost, given_up=tuple(given_up))


def gives_up(policy: RetentionPolicy, window: FrozenWindow, now: datetime) -> bool:
    overdue = overdue_since(policy, window.interval.end, now)
    return policy.when_overdue == DELETE and overdue is not None and overdue > policy.max_hold


def overdue_since(policy: RetentionPolicy, ended_at: datetime | None, now: datetime) -> timedelta | None:
    """How long the policy would have let an hour go that ended then; a limit by size counts from the hour's end."""
    return None if ended_at is None else max(timedelta(0), now - ended_at - (policy.retain or timedelta(0)))
