"""The product's checks, one by one, and how to switch each off: the machine must notice when one is missing.

A check made twice, here and further on, cannot be seen to be missing while the other one remains; those are one switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from logbus.loads.sinks import Sink
from logbus.loads.tally import ValuesReport
from logbus.model import Attempt, Pipeline
from logbus_spark.application import Application

from tests.proof.story import UNUSABLE_HEAD


def nothing(*arguments: Any, **named: Any) -> None:
    """Nothing is refused."""


def no_differences(*arguments: Any, **named: Any) -> dict[Any, Any]:
    return {}


def no_problems(*arguments: Any, **named: Any) -> list[str]:
    return []


def no(*arguments: Any, **named: Any) -> bool:
    return False


def as_it_is(offset: int, *arguments: Any) -> int:
    """A boundary exactly as it was found."""
    return offset


prepare = Application.prepare


def as_registered(application: Application, defined: Pipeline, attempts: Sequence[Attempt]) -> tuple[Pipeline, Sink]:
    """Every attempt is loaded by the current definition."""
    return prepare(application, application.ledger.pipeline(defined.name), attempts)


def values_are_well(*arguments: Any) -> ValuesReport:
    return ValuesReport()


def one_key(size: int) -> str:
    """Attempts that differ only in their numbers."""
    return "0" * size


@dataclass(frozen=True)
class Switch:
    """`by` replaces each of `names`. `wanted`: the fault, or the element of a day, that needs the check."""

    wanted: str
    by: Callable[..., Any] | str
    names: tuple[str, ...]

    def off(self, patch: pytest.MonkeyPatch) -> None:
        for name in self.names:
            patch.setattr(name, self.by)


SWITCHES: dict[str, Switch] = {
    # Where an hour begins
    "neighbours": Switch("quiet_then_late", as_it_is, ("logbus.windows.boundaries.clamp",)),
    "stamps_ahead": Switch(UNUSABLE_HEAD, no, ("logbus.windows.boundaries.needs_scan",)),
    "unstamped_head": Switch(UNUSABLE_HEAD, as_it_is, ("logbus.windows.boundaries.with_the_head",)),
    "unknown_head": Switch("greedy_retention", no, ("logbus.windows.freezing.Freeze.head_is_unknown",)),
    # Whether it is the same log
    "topic_id": Switch(
        "made_again",
        nothing,
        (
            "logbus.windows.log_changes.refuse_if_recreated",
            "logbus.windows.freezing.refuse_if_recreated",
            "logbus_spark.application.refuse_if_recreated",
        ),
    ),
    "end_of_the_log": Switch(
        "shortened",
        no_problems,
        ("logbus.windows.log_changes.refuse_if_shorter", "logbus.loads.audit.broker_problems"),
    ),
    "witnesses": Switch(
        "restored",
        no_differences,
        ("logbus.windows.log_changes.differences", "logbus_spark.load_task.check_witnesses"),
    ),
    # Which attempt may publish what
    "fence": Switch(
        "overtaken",
        nothing,
        (
            "logbus.loads.attempts.lock_if_current",
            "logbus.loads.sinks.postgres.lock_if_current",
            "logbus.loads.commit.lock_if_current",
        ),
    ),
    "key_of_an_attempt": Switch("ledger_restored_within_a_load", one_key, ("secrets.token_hex",)),
    "definition_of_an_attempt": Switch("changed_between", as_registered, ("logbus_spark.application.Application.prepare",)),
    "winners": Switch("repeated_task", "true", ("logbus.loads.sinks.postgres.WON",)),
    "equation": Switch("reader_skips", nothing, ("logbus.loads.commit.refuse_mismatch",)),
    "same_records": Switch("compacted", nothing, ("logbus.loads.commit.other_records",)),
    "one_owner": Switch("alias", nothing, ("logbus.windows.registration.refuse_shared_table",)),
    # The second witness
    "counts": Switch("row_deleted", no_problems, ("logbus.loads.audit.table_problems",)),
    "values": Switch("row_changed", values_are_well, ("logbus.loads.sinks.postgres.PostgresSink.compare_values",)),
}
