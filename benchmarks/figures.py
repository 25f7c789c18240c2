"""What a benchmark gives back: figures of ours beside the peer's, a table for people, a JSON file for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity. `target` says in words what is asked for, `held` whether it was met; None where nothing is asked."""

    figure: str
    ours: float
    peer: float | None
    ratio: float | None
    unit: str
    target: str | None
    held: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked of a figure: a bound on ours over the peer's, and perhaps one on ours alone."""

    ratio_max: float | None = None
    ratio_min: float | None = None
    ours_max: float | None = None

    def __str__(self) -> str:
        bounds = [("ratio <=", self.ratio_max), ("ratio >=", self.ratio_min), ("ours <=", self.ours_max)]
        return ", ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)

    def held(self, ours: float, ratio: float | None) -> bool | None:
        """None where a peer is missing that the target speaks of."""
        if ratio is None and (self.ratio_max is not None or self.ratio_min is not None):
            return None
        checks = (
            self.ours_max is None or ours <= self.ours_max,
            ratio is None or self.ratio_max is None or ratio <= self.ratio_max,
            ratio is None or self.ratio_min is None or ratio >= self.ratio_min,
        )
        return all(checks)


def figure(name: str, unit: str, *, ours: Sequence[float], peer: Sequence[float] = (), target: Target | None = None) -> Figure:
    """The medians of both sides' rounds, compared."""
    our_median = median(ours)
    peer_median = median(peer) if peer else None
    ratio = our_median / peer_median if peer_median else None
    return Figure(
        figure=name,
        ours=_rounded(our_median),
        peer=None if peer_median is None else _rounded(peer_median),
        ratio=None if ratio is None else round(ratio, 3),
        unit=unit,
        target=None if target is None else str(target),
        held=None if target is None else target.held(our_median, ratio),
    )


def write(name: str, figures: Sequence[Figure]) -> Path:
    """benchmarks/out/NAME.json: the list of figures."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    return path


def show(name: str, figures: Sequence[Figure], console: Console) -> None:
    table = Table("figure", "ours", "peer", "ratio", "unit", "target", "held", title=name)
    for one in figures:
        held = {True: "yes", False: "[red]no[/red]", None: ""}[one.held]
        cells = (f"{one.ours:,g}", _text(one.peer), _text(one.ratio), one.unit, one.target or "", held)
        table.add_row(one.figure, *cells)
    console.print(table)


def _rounded(value: float) -> float:
    return round(value, 3) if value < 100 else round(value)


def _text(value: float | None) -> str:
    return "missing" if value is None else f"{value:,g}"
