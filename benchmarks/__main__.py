"""`python -m benchmarks [NAME...]`: run benchmarks, print their tables, write benchmarks/out/NAME.json."""

from __future__ import annotations

import argparse
from importlib import import_module

from rich.console import Console

from benchmarks import figures

NAMES = ("produce", "consume", "ingest")
WIDTH = 140  # the same table in a terminal and in a build log


def main() -> None:
    """Exit status 1 when a target was not held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)} (default: all)")
    names = parser.parse_args().names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    console = Console(width=WIDTH, soft_wrap=True)
    missed = [one for name in names for one in _run(name, console) if one.held is False]
    if missed:
        console.print(f"[red]{len(missed)} targets were not held[/red]")
        raise SystemExit(1)


def _run(name: str, console: Console) -> list[figures.Figure]:
    measured = list(import_module(f"benchmarks.{name}").run(console))
    path = figures.write(name, measured)
    figures.show(name, measured, console)
    console.print(f"written to {path}")
    return measured


if __name__ == "__main__":
    main()
