"""A client that asks for next to nothing, and so notices when the broker serves others.

`python -m benchmarks.costs.bystander PORT` sends ApiVersions every 10 ms on one connection. It has a timetable: a request that
could not be sent in time, because the last answer was late, counts from when it was due. It is a separate process, so that the
load's Python cannot hold it up, and has a higher priority if that is allowed, so that the load's computing does not either.

Each line on stdin is answered by one on stdout: the longest wait since the last line and the 99th percentile of all of them, in
milliseconds. An answer that is still missing counts with its wait so far.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.processes import stop

EVERY_SECONDS = 0.01
QUESTION = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions 0 without a client id
PRIORITY = -10


class Waits:
    """The longest wait since the last report. Pure: the caller passes the times."""

    def __init__(self, now: float) -> None:
        self.due = now
        self.is_asking = False
        self._waits: list[float] = []

    def asked(self) -> None:
        self.is_asking = True

    def answered(self, now: float) -> None:
        """The next request is due by the timetable, which may already be in the past."""
        self._waits.append(now - self.due)
        self.is_asking = False
        self.due += EVERY_SECONDS
        if self.due < now - EVERY_SECONDS:  # missed requests count only once
            self.due = now

    def tell(self, now: float) -> tuple[float, float]:
        """The longest since the last report and the 99th percentile, in milliseconds."""
        waits = sorted([*self._waits, now - self.due if self.is_asking else 0.0])
        self._waits = []
        return waits[-1] * 1000, waits[len(waits) * 99 // 100] * 1000


def ask(connection: socket.socket, orders: int, clock: Callable[[], float]) -> None:
    """Sends requests until stdin ends."""
    waits, left = Waits(clock()), 0
    while True:
        now = clock()
        if not waits.is_asking and now >= waits.due:
            connection.sendall(QUESTION)
            waits.asked()
        timeout = None if waits.is_asking else max(waits.due - now, 0.0)
        readable, _, _ = select.select([connection.fileno(), orders], [], [], timeout)
        if connection.fileno() in readable:
            left = _receive(connection, left)
            if not left:
                waits.answered(clock())
        if orders in readable:
            if not os.read(orders, 1):
                return
            print(*(f"{milliseconds:.3f}" for milliseconds in waits.tell(clock())), flush=True)


def _receive(connection: socket.socket, left: int) -> int:
    """Receives a part of the answer; returns how many bytes of it are still to come."""
    received = connection.recv(1 << 16)
    if not received:
        raise SystemExit("the broker has ended the connection of somebody who did nothing")
    return left - len(received) if left else int.from_bytes(received[:4]) + 4 - len(received)


class Bystander:
    """The program, run next to a benchmark."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.costs.bystander", str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], bufsize=0
        )

    def __enter__(self) -> Self:
        self.longest_ms()  # returns once it is running
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def longest_ms(self) -> float:
        """The longest wait since the last call."""
        return self.waits_ms()[0]

    def waits_ms(self) -> tuple[float, float]:
        """The longest wait since the last call, and the 99th percentile of all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bystander was cut off")
        longest, percentile = map(float, line.split())
        return longest, percentile


def main() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask(connection, sys.stdin.fileno(), time.monotonic)


if __name__ == "__main__":
    main()
