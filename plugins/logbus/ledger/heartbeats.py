"""Signs of life: a driver says every few seconds that its attempts are alive; one that has not for long is taken for dead.

Nothing depends on them for being right: the attempt's number is the fence. They tell whoever looks (`logbus doctor`) a load that
takes its time from one whose machine is gone. A beat that fails is followed by the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

HEARTBEAT_SECONDS = 20.0

# Between taking an attempt and its driver's first beat lies the start of Spark; a warehouse that restarts costs some beats more.
HEARTBEAT_EXPIRY = timedelta(minutes=5)

STOP_SECONDS_MAX = 30.0  # a beat that hangs in a dead connection must not keep a program from ending


class Heartbeat:
    """A context manager: calls `beat` at once and then every `every_seconds`, on a thread of its own."""

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
