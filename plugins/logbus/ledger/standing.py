"""Where attempts stand: what the ledger says became of them, whatever their driver's exit status or a cluster manager tells.

A cluster manager answers for a driver, and may answer for an earlier one; it says nothing about windows. Only a commit does, and
that is in the ledger. So whoever submitted a load asks here what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, select, tuple_

from logbus.errors import AttemptSuperseded, LoadFailed
from logbus.ledger import attempts as attempts_of
from logbus.ledger import schema
from logbus.ledger.heartbeats import HEARTBEAT_EXPIRY
from logbus.ledger.rows import ATTEMPT_RUNNING, Row
from logbus.model import Attempt, instant_text
from logbus.wording import several

# What an attempt is ended with whose program is over and says that all is well.
ENDED_WITHOUT_COMMIT = "the Spark application ended without an error and without committing this window"
NAMED_MAX = 5  # windows that an error names; the ledger has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An attempt as the ledger knows it, the newest attempt at its window, and which one's rows the window has.

    `newest_is_alive`: it runs, and sent a heartbeat lately.
    """

    attempt: Attempt
    state: str
    loaded_attempt: int | None
    newest: int
    newest_state: str
    newest_run_id: str
    newest_is_alive: bool
    error: str | None = None

    @property
    def start(self) -> datetime:
        """Of the window."""
        return self.attempt.interval.start

    @property
    def is_committed(self) -> bool:
        """The window's newest commit is by this attempt."""
        return self.loaded_attempt == self.attempt.number

    @property
    def is_loaded_by_newer(self) -> bool:
        """An attempt that began after this one has committed: it took over from this one, or loaded the window again since."""
        return self.loaded_attempt is not None and self.loaded_attempt > self.attempt.number

    @property
    def is_loaded(self) -> bool:
        """By this attempt or since it began: what whoever began it asked for."""
        return self.is_committed or self.is_loaded_by_newer

    @property
    def is_taken_over(self) -> bool:
        """A newer attempt is at work on the window, and nobody has loaded it since."""
        return not self.is_loaded and self.newest > self.attempt.number and self.newest_is_alive

    @property
    def newest_doing(self) -> str:
        if self.newest_state != ATTEMPT_RUNNING:
            return self.newest_state
        return "at work on it" if self.newest_is_alive else "running, without a heartbeat"

    @property
    def why(self) -> str:
        """One clause for a window that is not loaded."""
        start = instant_text(self.start)
        if self.newest > self.attempt.number:
            newer = f"attempt {self.newest} of run {self.newest_run_id}"
            return f"{start}: {newer} took over from attempt {self.attempt.number} and is {self.newest_doing}"
        return f"{start}: attempt {self.attempt.number} is {self.state}" + (f" ({self.error})" if self.error else "")


def settle(engine: Engine, attempts: Sequence[Attempt], now: datetime) -> list[Standing]:
    """Where the attempts stand now that their program is over.

    One that still runs is ended: should its driver live on where nobody sees it, it cannot commit; what is said here stays true.
    """
    found = standings(engine, attempts, now)
    running = [standing.attempt for standing in found if standing.state == ATTEMPT_RUNNING]
    if not running:
        return found
    attempts_of.fail(engine, running, ENDED_WITHOUT_COMMIT, now)
    return standings(engine, attempts, now)


def why_not_loaded(found: Sequence[Standing]) -> LoadFailed | None:
    """The error that a program's end must be where the ledger says that not all its windows are loaded, whatever it said itself.

    `AttemptSuperseded` where all that is missing is in the hands of somebody newer: to try again would take it from them.
    """
    missing = [standing for standing in found if not standing.is_loaded]
    if not missing:
        return None
    reasons = several([standing.why for standing in missing], NAMED_MAX, separator="; ")
    if all(standing.is_taken_over for standing in missing):
        return AttemptSuperseded(
            f"another run loads what this was to load: {reasons}. They load the same records: look at their run, and "
            "clear this one only if the window is to be loaded once more"
        )
    return LoadFailed(f"{len(missing)} of {len(found)} windows are not loaded, says the ledger: {reasons}")


def standings(engine: Engine, attempts: Sequence[Attempt], now: datetime) -> list[Standing]:
    """Where each of the attempts stands, in their order. One question for all of them."""
    mine, newest, window = schema.attempt.alias("mine"), schema.attempt.alias("newest"), schema.window
    query = (
        select(
            mine.c.window_id,
            mine.c.number,
            mine.c.state,
            mine.c.error,
            window.c.loaded_attempt,
            newest.c.number.label("newest"),
            newest.c.state.label("newest_state"),
            newest.c.run_id.label("newest_run_id"),
            newest.c.heartbeat_at.label("newest_heartbeat_at"),
        )
        .join(window, window.c.id == mine.c.window_id)
        .join(newest, (newest.c.window_id == window.c.id) & (newest.c.number == window.c.last_attempt))
        .where(tuple_(mine.c.window_id, mine.c.number).in_([(attempt.window_id, attempt.number) for attempt in attempts]))
    )
    with engine.connect() as connection:
        rows = {(row["window_id"], row["number"]): row for row in connection.execute(query).mappings()}
    return [to_standing(attempt, rows[attempt.window_id, attempt.number], now) for attempt in attempts]


def to_standing(attempt: Attempt, row: Row, now: datetime) -> Standing:
    return Standing(
        attempt=attempt,
        state=row["state"],
        loaded_attempt=row["loaded_attempt"],
        newest=row["newest"],
        newest_state=row["newest_state"],
        newest_run_id=row["newest_run_id"],
        newest_is_alive=row["newest_state"] == ATTEMPT_RUNNING and row["newest_heartbeat_at"] > now - HEARTBEAT_EXPIRY,
        error=row["error"],
    )
