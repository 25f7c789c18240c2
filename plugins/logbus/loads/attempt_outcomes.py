"""The outcome of attempts according to the ledger, whatever their driver's exit status or a cluster manager reports.

A cluster manager reports on a driver, possibly an earlier one; it knows nothing about windows. Only a commit counts, and that is
in the ledger. So the submitter of a load asks here for its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, select

from logbus import errors, model
from logbus.formatting import many, several
from logbus.loads import attempts as attempts_of
from logbus.windows import schema
from logbus.windows.rows import ATTEMPT_RUNNING, HEARTBEAT_EXPIRY, Row

# The error of an attempt whose program ended and reported success.
ENDED_WITHOUT_COMMIT = "the Spark application ended without an error and without committing this window"
NAMED_MAX = 5  # windows named in an error; the ledger has all


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """An attempt as it is in the ledger, the newest attempt at its window, and the attempt whose rows the window has.

    `newest_is_alive`: it is running and has sent a heartbeat recently.
    """

    attempt: model.Attempt
    state: str
    loaded_attempt: int | None
    newest: int
    newest_state: str
    newest_run_id: str
    newest_is_alive: bool
    error: str | None = None

    @property
    def start(self) -> datetime:
        """The window's start."""
        return self.attempt.interval.start

    @property
    def is_committed(self) -> bool:
        """The window's newest commit is by this attempt."""
        return self.loaded_attempt == self.attempt.number

    @property
    def is_loaded_by_newer(self) -> bool:
        """An attempt that began after this one has committed: it superseded this one, or loaded the window again since."""
        return self.loaded_attempt is not None and self.loaded_attempt > self.attempt.number

    @property
    def is_loaded(self) -> bool:
        """Loaded by this attempt or a newer one: what the run that began it asked for."""
        return self.is_committed or self.is_loaded_by_newer

    @property
    def is_taken_over(self) -> bool:
        """A newer attempt is at work on the window, and it has not been loaded since."""
        return not self.is_loaded and self.newest > self.attempt.number and self.newest_is_alive

    @property
    def newest_doing(self) -> str:
        if self.newest_state != ATTEMPT_RUNNING:
            return self.newest_state
        return "at work on it" if self.newest_is_alive else "running, without a heartbeat"

    @property
    def why(self) -> str:
        """One clause for a window that is not loaded."""
        start = model.instant_text(self.start)
        if self.newest > self.attempt.number:
            newer = f"attempt {self.newest} of run {self.newest_run_id}"
            return f"{start}: {newer} took over from attempt {self.attempt.number} and is {self.newest_doing}"
        return f"{start}: attempt {self.attempt.number} is {self.state}" + (f" ({self.error})" if self.error else "")


def why_not_loaded(outcomes: Sequence[AttemptOutcome]) -> errors.LoadFailed | None:
    """The error to raise if not all windows are loaded according to the ledger, whatever the program itself reported.

    `AttemptSuperseded` if newer attempts are at work on all that is missing: a retry would supersede them.
    """
    missing = [outcome for outcome in outcomes if not outcome.is_loaded]
    if not missing:
        return None
    reasons = several([outcome.why for outcome in missing], NAMED_MAX, separator="; ")
    if all(outcome.is_taken_over for outcome in missing):
        return errors.AttemptSuperseded(
            f"another run is loading these windows: {reasons}. They load the same records: look at their run, and "
            "start this one again only if the window is to be loaded once more"
        )
    return errors.LoadFailed(
        f"not loaded, according to the ledger: {len(missing):,} of {many(len(outcomes), 'window')}: {reasons}"
    )


def outcomes_of(engine: Engine, attempts: Sequence[model.Attempt], now: datetime) -> list[AttemptOutcome]:
    """The outcome of each of the attempts, in their order, by one query."""
    ours, newest, window = schema.attempt.alias("ours"), schema.attempt.alias("newest"), schema.window
    query = (
        select(
            ours.c.window_id,
            ours.c.number,
            ours.c.state,
            ours.c.error,
            window.c.loaded_attempt,
            newest.c.number.label("newest"),
            newest.c.state.label("newest_state"),
            newest.c.run_id.label("newest_run_id"),
            newest.c.heartbeat_at.label("newest_heartbeat_at"),
        )
        .join(window, window.c.id == ours.c.window_id)
        .join(newest, (newest.c.window_id == window.c.id) & (newest.c.number == window.c.last_attempt))
        .where(attempts_of.among_attempts(attempts, ours))
    )
    with engine.connect() as connection:
        rows = {(row["window_id"], row["number"]): row for row in connection.execute(query).mappings()}
    return [_to_outcome(attempt, rows[attempt.window_id, attempt.number], now) for attempt in attempts]


def _to_outcome(attempt: model.Attempt, row: Row, now: datetime) -> AttemptOutcome:
    return AttemptOutcome(
        attempt=attempt,
        state=row["state"],
        loaded_attempt=row["loaded_attempt"],
        newest=row["newest"],
        newest_state=row["newest_state"],
        newest_run_id=row["newest_run_id"],
        newest_is_alive=row["newest_state"] == ATTEMPT_RUNNING and row["newest_heartbeat_at"] > now - HEARTBEAT_EXPIRY,
        error=row["error"],
    )
