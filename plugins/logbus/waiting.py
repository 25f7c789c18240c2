"""Waiting for something that is alive: one slow answer ends nothing, only the wait's own deadline does.

A machine that swaps, a laptop on battery, ten other programs: everything still works there, a hundred times later. So a wait asks
again until it is told yes, a process it stands on has ended, or a generous deadline has passed; and whoever looks at a screen
meanwhile is told what is waited for. Product and tests wait here and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from logbus.errors import NotInTime
from logbus.formatting import printable

# Ten times the slowest start that was seen on two cores with ten busy programs beside it.
PATIENCE_SECONDS = 600.0
POLL_SECONDS = 0.1

# A wait that takes longer than this is announced, and again each time it has taken twice as long.
SILENCE_SECONDS_MAX = 10.0

Say = Callable[[str], None]
Answer = TypeVar("Answer")


class Watched(Protocol):
    """A process that a wait stands on."""

    def raise_if_ended(self) -> None: ...

    def report(self) -> str:
        """That it is alive, where its log is, and how the log ends."""
        ...


def say_nothing(text: str) -> None:
    """For waits that nobody looks at."""


def on_stderr(text: str) -> None:
    """For commands."""
    print(text, file=sys.stderr, flush=True)


def logged(text: str) -> None:
    """For what does not know its screen: the log of an Airflow task, standard error of a command."""
    logging.getLogger("logbus.waiting").warning(text)


def wait_until(
    holds: Callable[[], Answer | None],
    *,
    what: str,
    timeout_seconds: float = PATIENCE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
    processes: Sequence[Watched] = (),
    remedy: str = "",
    say: Say = say_nothing,
) -> Answer:
    """Ask until the answer is true, and return it; an error of `not_yet` is a no.

    Raises what a process says that has ended, and `NotInTime` with the last such error, what each process wrote last and the
    remedy (what to type) once the deadline has passed. Between two questions it sleeps `poll_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    with announced(what, say):
        while True:
            reason = ""
            try:
                if answer := holds():
                    break
            except not_yet as error:
                reason = f": {error}"
            for process in processes:
                process.raise_if_ended()
            if time.monotonic() >= deadline:
                reports = [process.report() for process in processes]
                raise NotInTime(
                    "\n".join(
                        [f"gave up waiting for {what} after {timeout_seconds:.0f} s{reason}", *reports, *filter(None, [remedy])]
                    )
                )
            time.sleep(poll_seconds)
    for process in processes:
        process.raise_if_ended()
    return answer


@contextlib.contextmanager
def announced(what: str, say: Say) -> Iterator[None]:
    """Say what is being waited for if the block takes long: also while it is held up in a single call."""
    if say is say_nothing:
        yield
        return
    over = threading.Event()
    announcer = threading.Thread(target=_announce, args=(what, say, over), name="announcer", daemon=True)
    announcer.start()
    try:
        yield
    finally:
        over.set()
        announcer.join()


def _announce(what: str, say: Say, over: threading.Event) -> None:
    elapsed, silence, shown = 0.0, SILENCE_SECONDS_MAX, printable(what)  # it may quote the name of a group, or of a process
    while not over.wait(silence):
        elapsed += silence
        say(f"waiting for {shown}: {elapsed:.0f} s")
        silence = elapsed
