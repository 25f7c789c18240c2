"""A few helper threads beside the loop, for what releases the interpreter lock: fsync, unlink, reading a cold file.

A job runs on a helper; its outcome is posted back and handled on the loop's thread, so no state is ever shared. Nothing that
computes belongs here: one busy Python thread beside the loop was measured to cost it sixteen times its speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

Outcome = Callable[[Any, BaseException | None], None]


class Helpers(Protocol):
    """What the loop needs of its helpers; tests run jobs when they choose to."""

    def submit(self, job: Callable[[], Any], outcome: Outcome) -> None:
        """Run `job` beside the loop; `outcome(result, error)` is called on the loop's thread."""

    def drain(self) -> None:
        """Handle every outcome that has arrived."""

    def close(self) -> None:
        """Let running jobs end, then handle what they left."""


class HelperPool:
    """Runs jobs on `threads` helper threads; `wake` is called from them whenever an outcome waits."""

    def __init__(self, threads: int, wake: Callable[[], None]) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="helper")
        self._outcomes: deque[tuple[Outcome, Any, BaseException | None]] = deque()  # append and popleft are atomic
        self._wake = wake
        self.running = 0

    def submit(self, job: Callable[[], Any], outcome: Outcome) -> None:
        """Run `job` beside the loop; `outcome(result, error)` is called on the loop's thread."""
        self.running += 1
        self._executor.submit(self._run, job, outcome)

    def _run(self, job: Callable[[], Any], outcome: Outcome) -> None:
        result, error = None, None
        try:
            result = job()
        except BaseException as caught:
            error = caught
        self._outcomes.append((outcome, result, error))
        self._wake()

    def drain(self) -> None:
        """Handle every outcome that has arrived; the loop's thread only."""
        while self._outcomes:
            outcome, result, error = self._outcomes.popleft()
            self.running -= 1
            outcome(result, error)

    def close(self) -> None:
        """Let running jobs end, then handle what they left."""
        self._executor.shutdown(wait=True)
        self.drain()
