"""Heartbeats: a driver reports every few seconds that its attempts are alive; after a long silence they are presumed dead.

Correctness does not depend on them: the attempt's number is the fence. They distinguish (in `logbus doctor`) a slow load from one
whose machine is gone. A beat that fails is not retried; the next one follows. Nor does silence end an attempt: a driver that was
stopped, or whose warehouse was, beats again and commits, unless a newer attempt or `logbus doctor --clean` has come first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

HEARTBEAT_SECONDS = 20.0

# Spark has to start between beginning an attempt and its driver's first beat; a warehouse restart costs some more beats.
HEARTBEAT_EXPIRY = timedelta(minutes=5)

STOP_SECONDS_MAX = 30.0  # a beat that hangs on a dead connection must not keep the program from ending


class Heartbeat:
    """A context manager that calls `beat` at once and then every `every_seconds`, on its own thread."""

    def __init__(self, beat: Callable[[], None], every_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._beat = beat
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logbus-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        while True:
            with suppress(SQLAlchemyError):
                self._beat()
            if self._stopped.wait(self._every_seconds):
                return
