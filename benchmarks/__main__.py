"""`python -m benchmarks [NAME...]`: run benchmarks, print their tables, write benchmarks/out/NAME.json."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from importlib import import_module

from rich.console import Console

from benchmarks import figures
from benchmarks.loads import FULL, QUICK, Scale

NAMES = (
    "produce",
    "consume",
    "ingest",
    "sizes",
    "paper",
    "cluster",
    "growth",
    "upkeep",
    "fairness",
    "tls",
    "ui",
    "streams",
    "minutes",
    "topics",
)
HOUR_SECONDS = 3600.0
WIDTH = 170  # the same table in a terminal and in a build log


def main() -> None:
    """Exits with status 1 if a target was not held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="a little of everything, to see that it runs; the figures mean nothing"
    )
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/benchmarks.md and docs/figures/")
    parser.add_argument("--hour", action="store_true", help="steady loads last an hour, to see whether memory grows")
    options = parser.parse_args()
    names = options.names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what was started in an orderly way
    console = Console(width=WIDTH, soft_wrap=True)
    scale = QUICK if options.quick else FULL
    if options.hour:
        scale = replace(scale, steady_seconds=HOUR_SECONDS)
    missed = [one for name in names for one in _run(name, console, scale, docs=options.docs)]
    if missed:
        console.print(f"[red]{len(missed)} targets were not held[/red]")
        raise SystemExit(1)


def _run(name: str, console: Console, scale: Scale, *, docs: bool) -> list[figures.Figure]:
    """The figures whose target was not held."""
    measured = list(import_module(f"benchmarks.{name}").run(console, scale))
    path = figures.write(name, measured)
    figures.show(name, measured, console)
    console.print(f"written to {path}")
    if docs:
        from benchmarks.report import write

        console.print(f"written to {write(name, measured, scale)}")
    return [one for one in measured if one.held is False]


if __name__ == "__main__":
    main()
