"""What became of each window of an application, and how that is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logbus.model import Attempt, WindowCounts, counts_json, instant_text


class LoadState(StrEnum):
    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    FAILED = "failed"


# A superseded window is loaded by a newer attempt: nothing is wrong.
SUCCESSFUL = (LoadState.COMMITTED, LoadState.SUPERSEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutcome:
    """One window's outcome. `counts` if it is committed, `error` if not."""

    attempt: Attempt
    state: LoadState
    counts: WindowCounts | None = None
    error: str | None = None


def outcome_line(outcome: WindowOutcome, *, is_brief: bool = False) -> str:
    """`2015-05-17T10:00:00Z committed read=118 loaded=118 dead_lettered=0`. `is_brief`: only the reason's first sentence."""
    counts = outcome.counts
    detail = (
        f"read={counts.read} loaded={counts.loaded} dead_lettered={counts.dead_lettered} late={counts.late}"
        if counts
        else (outcome.error or "").partition(". ")[0]
        if is_brief
        else outcome.error
    )
    return f"{instant_text(outcome.attempt.interval.start)} {outcome.state} {detail}"


def telling(say: Callable[[str], None]) -> Callable[[WindowOutcome], None]:
    """Reports each outcome. One wrong setting fails every hour alike: errors with the same advice are printed in full once."""
    told: set[str] = set()

    def tell(outcome: WindowOutcome) -> None:
        advice = (outcome.error or "").rpartition(". ")[2]
        say(outcome_line(outcome, is_brief=advice in told))
        told.add(advice)

    return tell


def result(outcomes: Sequence[WindowOutcome]) -> dict[str, Any]:
    """Everything as JSON-ready values: totals, and the windows one by one."""
    states = {str(state): sum(outcome.state is state for outcome in outcomes) for state in LoadState}
    return {
        **states,
        "windows": [
            {
                "start": instant_text(outcome.attempt.interval.start),
                "attempt": outcome.attempt.number,
                "state": str(outcome.state),
                "counts": counts_json(outcome.counts),
                "error": outcome.error,
            }
            for outcome in outcomes
        ],
    }
