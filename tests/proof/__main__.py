"""`python -m tests.proof --seeds 3000`: prints the proof machine's results as a table; `--seed 17` plays and prints one story."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pytest
from logbus.loads.embedded import EmbeddedPostgres

from tests.proof.bench import Bench
from tests.proof.logs import BrokerLog
from tests.proof.machine import run
from tests.proof.story import FAULTS, FILE_FAULTS, draw
from tests.proof.switches import SWITCHES
from tests.support.in_process import replace_spark
from tests.support.postgres import FAST


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make proof", description="plays seeded histories and checks every claim of the product"
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, with its story")
    parser.add_argument("--fault", choices=sorted({*FAULTS, *FILE_FAULTS}), help="each history has this fault")
    parser.add_argument("--broker", action="store_true", help="over a real broker, which takes a second a history")
    parser.add_argument(
        "--switched-off", choices=sorted(SWITCHES), help="a check of the product that is missing: it must be noticed"
    )
    parser.add_argument("--failures", type=int, default=1, help="stop after so many (default: %(default)s)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    with (
        tempfile.TemporaryDirectory(prefix="logbus-proof-", ignore_cleanup_errors=True) as place,
        pytest.MonkeyPatch.context() as patch,
        EmbeddedPostgres(Path(place) / "pg", settings=FAST) as server,
    ):
        replace_spark(patch)
        fault = options.fault
        if options.switched_off:
            SWITCHES[options.switched_off].off(patch)
            fault = fault or SWITCHES[options.switched_off].wanted
        bench = Bench(server.create_database("proof"), Path(place) / "files")
        if options.seed is not None:
            print(draw(options.seed, fault, on_a_broker=options.broker))
        log = BrokerLog(Path(place)) if options.broker else None
        began = time.monotonic()
        summary = run(bench, seeds, fault=fault, log=log, failures_max=options.failures)
        print(summary)
        print(f"{summary.stories} histories in {time.monotonic() - began:.0f} s")
        if log:
            log.close()
        bench.close()
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
