"""Work outside the loop: flushes by the kernel, which makes a descriptor readable when one is done, and a few pool threads for
what releases the interpreter lock (fsync, unlink, reading a cold file).

A thread waiting in fdatasync does what the kernel does, but takes the interpreter lock several times per flush, always when the
loop is busiest: measured at a third of the broker's CPU where every acknowledgement waits for the disk. Linux supports this since
4.18 (IOCB_CMD_FDSYNC); where it does not work, threads flush. An error is reported as fdatasync would have raised it.

A job runs on a thread; its outcome is posted back and handled on the loop's thread, so no state is ever shared. Nothing that
computes for long belongs here: one busy Python thread next to the loop was measured to make it sixteen times slower. Most flushes
involve one file and need no thread.

There are three kinds of threads, so that short jobs never wait for long ones. Flushes have their own: two thousand searches by
time, which a single freeze of a wide topic requests, once delayed the flush of a segment that had just been sealed. Small files
(topics, checkpoints, producer ids) have one thread, which runs its jobs in the order of submission. Everything else shares the
remaining threads.

Logs are opened on the threads for flushes, several at a time: after a crash each ends with a flush, and a file system commits
many that wait in one go. Measured with 3,000 logs on a busy machine: 25.7 s one after the other, 2.7 s with four threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from logbus_broker import compiled_module, logs
from logbus_broker.errors import StorageError
from logbus_broker.filesystem import OpenFile
from logbus_broker.logs import log_bug

if TYPE_CHECKING:
    from logbus_broker.log.flusher import FlushTicket


_REQUESTS_MAX = 256  # in flight; of the 65,536 that a machine usually has for all processes

_Synced = Callable[[OSError | None], None]


class KernelSync:
    """All methods are for the loop's thread; the loop watches `fileno()` and calls `collect` when it is readable."""

    def __init__(self, context: Any, operation: Any) -> None:
        self._context = context
        self._operation = operation
        self._results: deque[tuple[_Synced, int]] = deque()
        self.running = 0

    @classmethod
    def open(cls, requests_max: int = _REQUESTS_MAX) -> KernelSync | None:
        """None if the kernel does not support it, or has no contexts left."""
        try:
            linux_aio = compiled_module.load_compiled("caio", "linux_aio")
            return cls(linux_aio.Context(requests_max), linux_aio.Operation)
        except (ImportError, SystemError):
            return None

    def fileno(self) -> int:
        descriptor: int = self._context.fileno
        return descriptor

    def sync(self, file: OpenFile, then: _Synced) -> bool:
        """Request a sync of the file's bytes and its length; `then` is called by `collect`, and must not raise. False: the kernel
        accepts no more requests, or not this file."""
        operation = self._operation.fdsync(file.fileno())
        # Called within process_events, where exceptions cannot be caught: it only notes. It holds the file open until then.
        operation.set_callback(lambda result, file=file: self._results.append((then, result)))
        try:
            if self._context.submit(operation) != 1:
                return False
        except (OverflowError, ValueError, SystemError):
            return False
        self.running += 1
        return True

    def collect(self) -> None:
        """Call back for the files that are on disk, or failed."""
        try:
            self._context.poll()
        except BlockingIOError:
            pass  # already collected
        while (
            self._context.process_events(_REQUESTS_MAX) == _REQUESTS_MAX
        ):  # there may be more, and `collect` will not be called again for them
            pass
        self._call_back()

    def _call_back(self) -> None:
        while self._results:
            then, result = self._results.popleft()
            self.running -= 1
            try:
                then(error_of(result) if result else None)
            except Exception:
                logs.log_bug("a callback after a flush failed")

    def close(self) -> None:
        """Wait for all outstanding requests."""
        while self.running:
            self._context.process_events(_REQUESTS_MAX, 1, -1)
            self._call_back()


def error_of(result: int) -> OSError | None:
    """The kernel's result: none, or a negative errno, which arrives as an unsigned 64-bit number."""
    signed = result - (1 << 64) if result >= 1 << 63 else result
    return OSError(-signed, os.strerror(-signed)) if signed < 0 else None


# Work outside the loop: flushes by the kernel, and a few pool threads for what releases the interpreter lock (fsync,
# unlink, reading a cold file).


Job = Callable[[], Any]
Result = TypeVar("Result")
Outcome = Callable[[Any, BaseException | None], None]


class ThreadPool(Protocol):
    """What the loop needs from its threads; tests run jobs when they choose to."""

    def submit(self, job: Job, outcome: Outcome) -> None:
        """Run `job` on a pool thread; `outcome(result, error)` is called on the loop's thread."""

    def store(self, job: Job, outcome: Outcome) -> None:
        """The same for a job that writes small files: it runs after all jobs passed to `store` earlier."""

    def flush(self, ticket: FlushTicket, outcome: Outcome) -> None:
        """Run the ticket outside the loop, likewise."""

    def run_together(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run these several at a time and wait for them: for a job of `store`, and for the start. The first error is raised."""

    def drain(self) -> None:
        """Handle every outcome that has arrived."""

    def close(self) -> None:
        """Let running jobs finish, then handle their outcomes."""


class SystemThreadPool:
    """Runs jobs on `threads` pool threads and flushes on `flush_threads`; they call `wake` whenever an outcome is ready. With
    `kernel` most flushes need no thread."""

    def __init__(self, threads: int, flush_threads: int, wake: Callable[[], None], kernel: KernelSync | None = None) -> None:
        self._jobs = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="background")
        self._files = ThreadPoolExecutor(max_workers=1, thread_name_prefix="files")
        self._flushes = ThreadPoolExecutor(max_workers=flush_threads, thread_name_prefix="flush")
        self._outcomes: deque[tuple[Outcome, Any, BaseException | None]] = deque()  # append and popleft are atomic
        self._wake = wake
        self._kernel = kernel
        self._is_closed = False

    def submit(self, job: Job, outcome: Outcome) -> None:
        """Run `job` on a pool thread; `outcome(result, error)` is called on the loop's thread."""
        self._run_on(self._jobs, job, outcome)

    def store(self, job: Job, outcome: Outcome) -> None:
        """The same for a job that writes small files: it runs after all jobs passed to `store` earlier."""
        self._run_on(self._files, job, outcome)

    def flush(self, ticket: FlushTicket, outcome: Outcome) -> None:
        """Run the ticket: in the kernel if possible, else on a thread."""
        file = ticket.only_file
        if file is None or self._kernel is None or not self._kernel.sync(file, partial(self._flushed, ticket, outcome)):
            self._run_on(self._flushes, ticket.run, outcome)

    def run_together(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run these several at a time and wait for them: for a job of `store`, and for the start. The first error is raised."""
        return list(self._flushes.map(call, jobs))

    def _run_on(self, executor: ThreadPoolExecutor, job: Job, outcome: Outcome) -> None:
        if self._is_closed:  # submitted by the outcome of a job that ended while the broker was stopping
            self._outcomes.append((outcome, None, StorageError("the broker is stopping")))
        else:
            executor.submit(self._run, job, outcome)

    def _flushed(self, ticket: FlushTicket, outcome: Outcome, error: OSError | None) -> None:
        self._outcomes.append((outcome, None, ticket.failure(error) if error else None))

    def _run(self, job: Job, outcome: Outcome) -> None:
        result, error = None, None
        try:
            result = job()
        except BaseException as caught:
            error = caught
        self._outcomes.append((outcome, result, error))
        self._wake()

    def drain(self) -> None:
        """Handle every outcome that has arrived; on the loop's thread only. One that raises is a defect, and does not affect the
        others."""
        while self._outcomes:
            outcome, result, error = self._outcomes.popleft()
            try:
                outcome(result, error)
            except Exception:
                log_bug("handling the outcome of a background job failed")

    def close(self) -> None:
        """Let running jobs finish, then handle their outcomes. Jobs that an outcome submits now fail with an error."""
        self._is_closed = True
        for executor in (self._files, self._flushes, self._jobs):  # a job for files may be waiting for flush threads
            executor.shutdown(wait=True)
        if self._kernel is not None:
            self._kernel.close()
        self.drain()
