"""What the driver and the audit need of a sink.

A load goes `ensure_target`, `create_staging`, (the tasks write), `seal`, `commit`. Whatever dies in between, the target
holds what it held before, or all of the new load: never a part of a window, never two loads of one. The fence is the
ledger's: only the newest attempt of a window may stage, seal or commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from logbus.ledger.values import ValuesReport
from logbus.model import Attempt, FrozenWindow, PartitionTally, WindowCounts
from logbus.proof.tally import Counted
from logbus.warehouse.commit import SealedWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How `maintain` goes about it. `keep_hourly`: hours younger than this keep a partition of their own (PostgreSQL).
    `keep_replaced`: files that are not public (any more) stay this long, for readers that have begun and attempts that run."""

    now: datetime
    sleep: Callable[[float], None]
    keep_hourly: timedelta = timedelta(days=35)
    keep_replaced: timedelta = timedelta(days=1)


class Sink(Protocol):
    """One pipeline's sink."""

    name: str

    def task_options(self) -> Mapping[str, Any]:
        """What the tasks need to write: the same name's sink in `spark_jobs.sinks` gets it. May hold secrets."""

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        """Makes the target, or adds what it lacks. `columns` are the parser's, name to PostgreSQL type.

        Raises `UserError` where a column is there with another type, or the target is the user's own and lacks columns.
        """

    def create_staging(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        """Makes room for what the attempts' tasks write; returns those that may go on and those that are superseded."""

    def seal(self, attempt: Attempt, winners: Collection[int], files: Sequence[str]) -> Counted:
        """Closes what the attempt staged to every writer, leaves only what the winning task attempts wrote, and counts it.

        `files` are those the winners named. Raises `AttemptSuperseded`.
        """

    def commit(self, load: SealedWindow, now: datetime) -> WindowCounts:
        """Makes the window public, rows, dead letters and ledger.

        Raises `AttemptSuperseded`, `EquationMismatch` (both: nothing became public) or `LoadFailed`.
        """

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        """Counts the window's public rows and dead letters anew, by partition: for the audit."""

    def compare_values(self, window: FrozenWindow) -> ValuesReport:
        """Takes the checksums of the window's public rows and dead letters again and compares them with those of its load."""

    def maintain(self, upkeep: Upkeep) -> list[str]:
        """Regular work beside loads and readers, at any time. Says what it did, line by line."""

    def discard(self, attempt: Attempt) -> None:
        """Removes what an attempt staged that will never commit. What is public is never touched."""
