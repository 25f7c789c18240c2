"""A process with a store, which prints its callbacks: `python -m tests.support.store_process CONNECT SESSION_TIMEOUT_MS`.

It creates the ephemeral node /process in each of its sessions. It prints `connected ID`, `suspended`, `made ID`, and `late ID`
with the session that it assumes to have when it is continued after a stop, before it has handled anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from broker.clock import SystemClock
from broker.coordination.store import Committed, Create
from broker.coordination.zookeeper import ZooKeeperStore

PROJECT = Path(__file__).parents[2]


class Teller:
    """Creates the node, and prints the callbacks."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._store = store

    def connected(self, session_id: int) -> None:
        say("connected", session_id)
        self._store.commit([Create(path="/process", is_ephemeral=True)], self._made)

    def suspended(self) -> None:
        say("suspended")

    def changed(self, path: str) -> None:
        say("changed", path)

    def _made(self, outcome: object) -> None:
        if isinstance(outcome, Committed):
            say("made", self._store.session_id)


def say(*words: Any) -> None:
    print(*words, flush=True)


def main(connect: str, session_timeout_ms: int) -> None:
    woken = threading.Event()
    store = ZooKeeperStore(connect, session_timeout_ms, woken.set, clock=SystemClock())
    stopped: list[bool] = []
    signal.signal(signal.SIGCONT, lambda *_: stopped.append(True))
    store.begin(Teller(store))
    while True:
        woken.wait(0.05)
        woken.clear()
        if stopped:
            stopped.clear()
            say("late", store.session_id)
        store.drain()


class StoreProcess:
    """Such a process, from the test's side; a context manager that kills it."""

    def __init__(self, connect: str, session_timeout_ms: int) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.store_process", connect, str(session_timeout_ms)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.strip())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
