"""Files that the kernel syncs asynchronously: a request is submitted, and a descriptor becomes readable when it is done.

A thread waiting in fdatasync does the same, but takes the interpreter lock several times per flush, always when the loop is
busiest: measured at a third of the broker's CPU where every acknowledgement waits for the disk. Linux supports this since 4.18
(IOCB_CMD_FDSYNC); where it does not work, threads flush. An error is reported as fdatasync would have raised it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from logbus_broker import compiled_module, logs
from logbus_broker.disk.filesystem import OpenFile

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
