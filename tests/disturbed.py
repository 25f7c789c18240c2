"""The suite on a bad machine: busy processes beside it, and the processes under test stopped at random for some seconds.

    python -m tests.disturbed [--busy 6] [--stops-per-minute 20] [--seed N] [pytest's arguments]

A test that fails only here has a race, or has found one. Which processes were stopped when is printed at the end.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

STOPPED_SECONDS = (0.2, 5.0)
BUSY = [sys.executable, "-c", "while 1: pass"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, default=6, help="processes that only compute")
    parser.add_argument("--stops-per-minute", type=float, default=20.0, help="0: none is stopped")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options, arguments = parser.parse_known_args()
    print(f"seed {options.seed}", flush=True)
    busy = [subprocess.Popen(BUSY) for _ in range(options.busy)]
    suite = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    over, stops = threading.Event(), []
    stopper = threading.Thread(
        target=stop_some, args=(suite.pid, random.Random(options.seed), options.stops_per_minute, over, stops)
    )
    stopper.start()
    try:
        return suite.wait()
    finally:
        over.set()
        stopper.join()
        for process in busy:
            process.kill()
            process.wait()
        print("\n".join(stops))


def stop_some(suite: int, chance: random.Random, per_minute: float, over: threading.Event, stops: list[str]) -> None:
    """Stops one of the processes under test after another, until `over`; each of them goes on."""
    while per_minute and not over.wait(chance.expovariate(per_minute / 60)):
        with suppress(psutil.Error):
            candidates = under_test(psutil.Process(suite))
            if not candidates:
                continue
            chosen, seconds = chance.choice(candidates), chance.uniform(*STOPPED_SECONDS)
            stops.append(f"{time.strftime('%H:%M:%S')} stopped for {seconds:.1f} s: {' '.join(chosen.cmdline())[:150]}")
            chosen.send_signal(signal.SIGSTOP)
            over.wait(seconds)
            chosen.send_signal(signal.SIGCONT)


def under_test(suite: psutil.Process) -> list[psutil.Process]:
    """What the suite's workers have started, without what a test itself has stopped."""
    with_workers = suite.children()
    started = [process for worker in with_workers for process in worker.children(recursive=True)] or with_workers
    return [process for process in started if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)]


if __name__ == "__main__":
    sys.exit(main())
