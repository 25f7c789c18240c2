"""The product's checks, one by one, and how to switch each off: the machine must notice when one is missing.

A check made twice, here and further on, cannot be seen to be missing while the other one remains; those are one switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from logbus.ledger.values import ValuesReport

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


def as_registered(registered: Any, attempts: Any) -> list[tuple[Any, list[Any]]]:
    """Every attempt is loaded by the current definition."""
    return [(registered, list(attempts))]


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
    "neighbours": Switch("quiet_then_late", as_it_is, ("logbus.ledger.boundaries.clamp",)),
    "stamps_ahead": Switch(UNUSABLE_HEAD, no, ("logbus.ledger.boundaries.needs_scan",)),
    "unstamped_head": Switch(UNUSABLE_HEAD, as_it_is, ("logbus.ledger.boundaries.with_the_head",)),
    "unknown_head": Switch("greedy_retention", no, ("logbus.ledger.freezing.Freeze.head_is_unknown",)),
    # Whether it is the same log
    "topic_id": Switch(
        "made_again",
        nothing,
        (
            "logbus.ledger.retained.refuse_if_recreated",
            "logbus.ledger.freezing.refuse_if_recreated",
            "spark_jobs.application.refuse_if_recreated",
        ),
    ),
    "end_of_the_log": Switch(
        "shortened",
        no_problems,
        (
            "logbus.ledger.witnesses.refuse_if_shorter",
            "logbus.ledger.testimony.refuse_if_shorter",
            "logbus.proof.audit.broker_problems",
        ),
    ),
    "witnesses": Switch(
        "restored",
        no_differences,
        (
            "logbus.ledger.witnesses.differences",
            "logbus.ledger.testimony.differences",
            "spark_jobs.load_task.refuse_other_records",
        ),
    ),
    # Which attempt may publish what
    "fence": Switch(
        "overtaken",
        nothing,
        (
            "logbus.ledger.attempts.lock_if_current",
            "logbus.warehouse.staging.lock_if_current",
            "logbus.warehouse.commit.lock_if_current",
        ),
    ),
    "key_of_an_attempt": Switch("ledger_restored_within_a_load", one_key, ("secrets.token_hex",)),
    "definition_of_an_attempt": Switch("changed_between", as_registered, ("spark_jobs.application.by_definition",)),
    "winners": Switch("repeated_task", "true", ("logbus.warehouse.staging.WON",)),
    "equation": Switch("reader_skips", nothing, ("logbus.warehouse.commit.refuse_mismatch",)),
    "same_records": Switch("compacted", nothing, ("logbus.warehouse.commit.other_records",)),
    "one_owner": Switch(
        "alias",
        nothing,
        ("logbus.ledger.registration.refuse_shared_table", "logbus.ledger.attempts.refuse_shared_table"),
    ),
    # The second witness
    "counts": Switch("row_deleted", no_problems, ("logbus.proof.audit.table_problems",)),
    "values": Switch("row_changed", values_are_well, ("logbus.warehouse.sinks.postgres.PostgresSink.compare_values",)),
}
