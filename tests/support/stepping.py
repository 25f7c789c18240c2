"""Work that continues only when the test says so: a thread that stops at each point, where a test can interleave or kill it.

At most one such thread runs at any time, so the test alone decides what happens. A killed one does nothing more, like a process
after SIGKILL: whatever it tries next raises `Killed` again, which no `except Exception` catches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine, event


class Killed(BaseException):
    """The process has been killed."""


class Stepped:
    """Runs `work(pause)` in a thread, with each `step` up to its next pause. `outcome` is its result, `error` its exception."""

    def __init__(self, work: Callable[[Callable[[str], None]], Any]) -> None:
        self.at = "start"
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return self.at == "end"

    def step(self) -> None:
        """Run until the next pause or the end."""
        if not self.is_done:
            self._go.release()
            assert self._stopped.acquire(timeout=PATIENCE_SECONDS), f"stuck behind {self.at}"

    def finish(self) -> None:
        while not self.is_done:
            self.step()

    def kill(self) -> None:
        """As SIGKILL, at the point where it has stopped."""
        self._killed = True
        self.finish()

    def pause(self, where: str) -> None:
        if threading.current_thread() is not self._thread:
            return
        self._refuse_if_killed()
        self.at = where
        self._stopped.release()
        self._go.acquire()
        self._refuse_if_killed()

    def _refuse_if_killed(self) -> None:
        if self._killed:
            raise Killed

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._refuse_if_killed()
            self.outcome = self._work(self.pause)
        except BaseException as error:
            self.error = error
        self.at = "end"
        self._stopped.release()


def pause_before_transactions(engine: Engine, pause: Callable[[str], None]) -> None:
    """Pauses users of the engine before each transaction: no locks are held there, so nothing waits for them."""

    @event.listens_for(engine, "begin")
    def before(connection: Any) -> None:
        pause("transaction")
