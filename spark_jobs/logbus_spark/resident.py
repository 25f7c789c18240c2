"""The driver's side of `logbus.resident_driver`: loads that are asked for at a socket, one after the other, by one Spark."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from logbus.resident_driver import ACCEPTED, ENDED, read_line

from logbus_spark import session

LOOK_SECONDS = 1.0

# Loads by the program's arguments, says what it would print, and gives the status that it would have.
Load = Callable[[Sequence[str], Callable[[str], None]], int]


def stay(path: Path, idle_seconds: float, load: Load) -> int:
    """Until nothing has come for so long, a load has failed, or Spark is gone."""
    submitted_by = os.getppid()
    session.started()
    with socket.socket(socket.AF_UNIX) as listener:
        listen_at(listener, path)
        own = path.stat().st_ino
        listener.settimeout(LOOK_SECONDS)
        try:
            idle_since = time.monotonic()
            while time.monotonic() - idle_since < idle_seconds and os.getppid() == submitted_by and inode(path) == own:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(None)
                    if (status := answer(connection, load)) != 0:
                        return status
                idle_since = time.monotonic()
        finally:
            if inode(path) == own:
                path.unlink()
    return 0


def listen_at(listener: socket.socket, path: Path) -> None:
    """Under its name only once it listens; what lies there was left by a driver that is no longer."""
    new = path.with_suffix(f".{os.getpid()}")
    listener.bind(str(new))
    listener.listen(1)
    new.rename(path)


def inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def answer(connection: socket.socket, load: Load) -> int:
    request = read_line(connection)
    if not request:
        return 0
    is_over, sending = threading.Event(), threading.Lock()

    def say(line: str) -> None:
        with sending:
            connection.sendall(line.replace("\n", " ").encode() + b"\n")

    def watch() -> None:
        with suppress(OSError):  # a reset, if whoever asked was killed before it had read all that was said
            connection.recv(1)  # nothing comes but the end
        if not is_over.is_set():
            os._exit(1)  # nobody waits for this load: its task was killed. The JVM follows its program

    say(ACCEPTED)
    threading.Thread(target=watch, daemon=True).start()
    try:
        status = load(json.loads(request), say)
    except Exception as error:  # here, since the client reads no log; what is an error of ours has a status of its own
        traceback.print_exc()
        say(f"error: {type(error).__name__}: {error}")
        status = 1
    is_over.set()
    say(f"{ENDED} {status}")
    return status
