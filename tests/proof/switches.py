"""The product's checks, one by one, and how to switch each off: the machine must notice when one is missing.

By name: what is replaced, and the fault that needs the check (None: ordinary days do). A check that stands twice, here and behind it,
cannot be seen to be missing as long as the other one stands; those are switched off together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from logbus.warehouse import commit, staging
from logbus.windows import attempts, audit, boundaries, freezing, registration, retained

from spark_jobs import application


def nothing(*arguments: Any, **named: Any) -> Any:
    return None


def no_problems(*arguments: Any, **named: Any) -> list[str]:
    return []


def unclamped(offset: int, neighbours: Any) -> int:
    return offset


def no_head(offset: int, *arguments: Any) -> int:
    return offset


def no(*arguments: Any, **named: Any) -> bool:
    return False


@dataclass(frozen=True)
class Switch:
    """`places` are (module or class, name of what is replaced), `by` what stands there instead."""

    fault: str | None
    by: Callable[..., Any] | str
    places: tuple[tuple[Any, str], ...]

    def off(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in self.places:
            patch.setattr(owner, name, self.by)


SWITCHES: dict[str, Switch] = {
    "equation": Switch("reader_skips", nothing, ((commit, "refuse_mismatch"),)),
    "fence": Switch(None, nothing, ((attempts, "lock_if_current"), (staging, "lock_if_current"), (commit, "lock_if_current"))),
    "winners": Switch(None, "true", ((staging, "WON"),)),
    "topic_id": Switch(
        "made_again",
        nothing,
        ((retained, "refuse_if_recreated"), (freezing, "refuse_if_recreated"), (application, "refuse_if_recreated")),
    ),
    "head_unknown": Switch("greedy_retention", no, ((freezing.Freeze, "head_is_unknown"),)),
    "clamp": Switch(None, unclamped, ((boundaries, "clamp"),)),
    "stamps_ahead": Switch(None, no, ((boundaries, "needs_scan"),)),
    "unstamped_head": Switch(None, no_head, ((boundaries, "with_the_head"),)),
    "audit_counts": Switch("row_deleted", no_problems, ((audit, "table_problems"),)),
    "one_owner": Switch("alias", nothing, ((registration, "refuse_shared_table"),)),
}
