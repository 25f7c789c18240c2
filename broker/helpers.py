"""What goes on beside the loop: flushes by the kernel, and a few helper threads for what releases the interpreter lock (fsync,
unlink, reading a cold file).

A job runs on a helper; its outcome is posted back and handled on the loop's thread, so no state is ever shared. Nothing that
computes belongs here: one busy Python thread beside the loop was measured to cost it sixteen times its speed. Most flushes are
of one file and need no thread (storage/kernel_sync.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from broker.storage.flush import FlushTicket
from broker.storage.kernel_sync import KernelSync

Outcome = Callable[[Any, BaseException | None], None]


class Helpers(Protocol):
    """What the loop needs of its helpers; tests run jobs when they choose to."""

    def submit(self, job: Callable[[], Any], outcome: Outcome) -> None:
        """Run `job` beside the loop; `outcome(result, error)` is called on the loop's thread."""

    def flush(self, ticket: FlushTicket, outcome: Outcome) -> None:
        """Run the ticket beside the loop, likewise."""

    def drain(self) -> None:
        """Handle every outcome that has arrived."""

    def close(self) -> None:
        """Let running jobs end, then handle what they left."""


class HelperPool:
    """Runs jobs on `threads` helper threads; `wake` is called from them whenever an outcome waits. Without `kernel` they flush,
    too."""

    def __init__(self, threads: int, wake: Callable[[], None], kernel: KernelSync | None = None) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="helper")
        self._outcomes: deque[tuple[Outcome, Any, BaseException | None]] = deque()  # append and popleft are atomic
        self._wake = wake
        self._kernel = kernel
        self.running = 0

    def submit(self, job: Callable[[], Any], outcome: Outcome) -> None:
        """Run `job` beside the loop; `outcome(result, error)` is called on the loop's thread."""
        self.running += 1
        self._executor.submit(self._run, job, outcome)

    def flush(self, ticket: FlushTicket, outcome: Outcome) -> None:
        """Run the ticket: by the kernel where that can, else on a helper thread."""
        file = ticket.only_file
        if file is None or self._kernel is None or not self._kernel.sync(file, partial(self._flushed, ticket, outcome)):
            self.submit(ticket.run, outcome)
        else:
            self.running += 1

    def _flushed(self, ticket: FlushTicket, outcome: Outcome, error: OSError | None) -> None:
        self._outcomes.append((outcome, None, ticket.failure(error) if error else None))

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
        if self._kernel is not None:
            self._kernel.close()
        self.drain()
