"""`load_windows.py --stay` without Spark: run as a program by the tests of the resident driver. What it "loads" is what it is told:
`say TEXT...`, `print TEXT...` to its log, `fail`, `crash`, or `wait`, which takes until its connection is closed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from logbus_spark import load_windows, session


def load(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    say(f"process {os.getpid()}")
    match arguments:
        case ["wait"]:
            threading.Event().wait()
        case ["crash"]:
            raise RuntimeError("crashed as it was told to")
        case ["fail"]:
            say("error: told to fail")
            return 1
        case ["print", *words]:
            print(*words, flush=True)
        case ["say", *words]:
            for word in words:
                say(word)
    return 0


if __name__ == "__main__":
    session.started = lambda: None  # type: ignore[assignment,return-value]
    print("this is the log", flush=True)
    path, idle_seconds = sys.argv[sys.argv.index("--stay") + 1], sys.argv[sys.argv.index("--idle-seconds") + 1]
    sys.exit(load_windows.stay(Path(path), float(idle_seconds), load))
