"""Interruption: Ctrl-C and SIGTERM end a command cleanly, with one line that says how far it got.

A command that sends or reads runs inside `stopping()`. There the first signal only sets a flag, which the command checks between
two records, so no record is half processed. While the command waits for input, which a flag would not wake, the signal raises.
The command finishes what is under way and raises `Stopped` with its sentence; the group (logbus.cli) prints that and exits with
128 plus the signal's number. A second signal takes effect at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from logbus.exit_codes import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Item = TypeVar("Item")


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled wherever Ctrl-C is."""


class Stopped(Exception):
    """Stopped cleanly; the message says how far it got."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stop:
    """The flag that a signal sets."""

    def __init__(self) -> None:
        self.exit_code: ExitCode | None = None
        self._is_waiting = False

    def __bool__(self) -> bool:
        return self.exit_code is not None

    def waiting_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, until a signal: one that arrives while waiting for the next item ends the wait."""
        remaining = iter(items)
        try:
            while True:
                self._is_waiting = True  # set first: a signal from here on raises, an earlier one is seen below
                if self:
                    return
                try:
                    item = next(remaining)
                except StopIteration:
                    return
                self._is_waiting = False
                yield item
        except KeyboardInterrupt:
            if not self._is_waiting:
                raise
        finally:
            self._is_waiting = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        is_second, self.exit_code = bool(self), ExitCode(128 + number)
        if is_second or self._is_waiting:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """Both signals set the flag while it is active."""
    stop = Stop()
    with _handled(SIGNALS, stop.note):
        yield stop


@contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and a closed terminal raise as Ctrl-C does: for work that stops what it started when it is interrupted."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated

    # A closed terminal ends nothing that was started to survive it, as under nohup.
    is_watched = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    with _handled((signal.SIGTERM, signal.SIGHUP) if is_watched else (signal.SIGTERM,), leave):
        yield


def set_at_signals(event: threading.Event) -> None:
    """For a server, which runs until the event is set: either signal sets it, from now on."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: event.set())


@contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Only the main thread receives signals, so elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)


def exit_code_of(interrupt: KeyboardInterrupt) -> ExitCode:
    return ExitCode.TERMINATED if isinstance(interrupt, Terminated) else ExitCode.INTERRUPTED


def discard_stdout() -> None:
    """Standard output has lost its reader: what is still buffered for it must not fail at exit."""
    with suppress(OSError):  # not a real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
