"""One Spark application that loads windows, for a task of Airflow and for a command alike: begin, submit, settle, judge.

The attempts are taken before the application is submitted; its driver only verifies them. So a slow first driver cannot fence out
the good second one, and a driver that outlives its submitter is refused at commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from logbus import errors, model
from logbus.loads.attempts import AttemptOutcome, why_not_loaded
from logbus.loads.ledger import Ledger

WINDOWS_PER_JOB_MAX = 84  # half a week of hours: one Spark job, and all that is lost if it fails; a job costs a second
WINDOWS_PER_APPLICATION_MAX = 1_000  # attempts are passed on a command line, whose length is limited
ERROR_CHARACTERS_MAX = 4_000  # of a failure's text kept in the ledger; the submitter's log has all of it

Item = TypeVar("Item")


def in_groups(items: Sequence[Item], size: int = WINDOWS_PER_APPLICATION_MAX) -> Iterator[Sequence[Item]]:
    """The items in their order, at most `size` at a time."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


@dataclass(kw_only=True)
class LoadRun:
    """A run that loads windows of one pipeline: a task's try, or a command.

    `submit` runs the application for these attempts to its end, and raises `LoadFailed` if that reports a failure. `definition`:
    how the windows are loaded, by default as the pipeline is registered.
    """

    ledger: Ledger
    pipeline_name: str
    run_id: str
    submit: Callable[[Sequence[model.Attempt]], None]
    now: Callable[[], datetime]
    say: Callable[[str], None]
    try_number: int = 1
    task: model.TaskKey | None = None
    definition: model.Pipeline | None = None
    supersede: bool = True
    attempts: list[model.Attempt] = field(default_factory=list, init=False)  # all that it has begun
    _running: Sequence[model.Attempt] = field(default=(), init=False)

    def load(
        self, starts: Sequence[datetime], beside: Sequence[datetime] = (), accept_other_records: Collection[datetime] = ()
    ) -> list[AttemptOutcome]:
        """Loads the windows and those `beside`, with one application; what became of the former.

        It fails if not all of the former are loaded according to the ledger, whatever the application reports: a cluster manager
        knows only that a driver has ended, and some report the driver of an earlier try. With `AttemptSuperseded` if newer
        attempts are at work on all that is missing; with the driver's own error if no retry can fix that.
        """
        attempts = self.ledger.begin_attempts(
            self.pipeline_name,
            [*starts, *beside],
            self.run_id,
            self.try_number,
            self.now(),
            self.task,
            self.definition,
            accept_other_records=accept_other_records,
            supersede=self.supersede,
        )
        self.attempts += attempts
        failure: errors.LoadFailed | None = None
        try:
            self._running = attempts
            self.submit(attempts)
        except errors.LoadFailed as error:
            failure = error
            self.end(str(error))
        except BaseException as error:  # Airflow's timeout and Ctrl-C are no Exceptions
            self.end(str(error) or type(error).__name__)
            raise
        finally:
            self._running = ()
        outcomes = self.ledger.settle_attempts(attempts, self.now())
        own = [outcome for outcome in outcomes if outcome.start in set(starts)]
        self._raise_unless_loaded(own, failure)
        return own

    def end(self, reason: str) -> None:
        """Ends the attempts of the application that runs, so that no driver commits them any more."""
        if self._running:
            self.ledger.fail_attempts(self._running, reason[-ERROR_CHARACTERS_MAX:], self.now())

    def _raise_unless_loaded(self, own: Sequence[AttemptOutcome], failure: errors.LoadFailed | None) -> None:
        missing = why_not_loaded(own)
        if missing is not None:
            if final := self.ledger.beyond_retry([outcome.attempt for outcome in own]):
                raise final from failure
            raise failure if failure and not isinstance(missing, errors.AttemptSuperseded) else missing
        if failure is not None:
            self.say(f"The windows are loaded, although the application failed: {failure}")
        for outcome in own:
            if outcome.is_loaded_by_newer:
                self.say(f"Attempt {outcome.newest} took over from ours and has loaded it: {outcome.attempt.token}")
