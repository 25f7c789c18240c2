"""Work that goes on only when it is told to: a thread that stops at each point, so that a test interleaves or kills it there.

At most one such thread runs at any time, so what happens is decided by the test alone. A killed one runs no further line of its
own, as a process that got SIGKILL: whatever it tries next raises `Killed` again, which no `except Exception` catches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

SECONDS_MAX = 60.0


class Killed(BaseException):
    """The process is gone."""


class Stepped:
    """Runs `work(pause)` in a thread, up to the next pause with each `step`. `outcome` is what it returned, `error` what it raised."""

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
        """Until the next pause, or the end."""
        if not self.is_done:
            self._go.release()
            assert self._stopped.acquire(timeout=SECONDS_MAX), f"stuck behind {self.at}"

    def finish(self) -> None:
        while not self.is_done:
            self.step()

    def kill(self) -> None:
        """SIGKILL where it stands."""
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
    """Stops whoever uses the engine before each transaction: nothing is locked there, so nobody waits for him."""

    @event.listens_for(engine, "begin")
    def before(connection: Any) -> None:
        pause("transaction")
