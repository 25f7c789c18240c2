"""What a benchmark returns: our figures next to a peer's, as a table for people and a JSON file for programs.

Both sides are measured in turns, so the ratio is taken for each pair of neighbours and the median of those is reported: a machine
that is slow for a minute slows both of a pair. A side that could not be measured keeps its row, with the reason.
"""

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
    """One measured quantity. `target` is the goal in words, `held` whether it was met; None if there is no goal or the peer is
    missing. `note` is why a side has no figure."""

    figure: str
    ours: float | None
    peer: float | None
    ratio: float | None
    unit: str
    target: str | None
    held: bool | None
    against: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The goal for a figure: a bound on ours over the peer's, and perhaps one on ours alone."""

    ratio_max: float | None = None
    ratio_min: float | None = None
    ours_max: float | None = None
    ours_min: float | None = None

    def __str__(self) -> str:
        bounds = [("ratio <=", self.ratio_max), ("ratio >=", self.ratio_min)]
        bounds += [("ours <=", self.ours_max), ("ours >=", self.ours_min)]
        return ", ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)

    def held(self, ours: float | None, ratio: float | None) -> bool | None:
        """False if ours failed; None if the target is a ratio and the peer is missing."""
        if ours is None:
            return False
        if ratio is None and (self.ratio_max is not None or self.ratio_min is not None):
            return None
        checks = (
            self.ours_max is None or ours <= self.ours_max,
            self.ours_min is None or ours >= self.ours_min,
            ratio is None or self.ratio_max is None or ratio <= self.ratio_max,
            ratio is None or self.ratio_min is None or ratio >= self.ratio_min,
        )
        return all(checks)


def figure(
    name: str,
    unit: str,
    *,
    ours: Sequence[float],
    peer: Sequence[float] = (),
    target: Target | None = None,
    against: str = "",
    note: str = "",
) -> Figure:
    """The medians of both sides' rounds, and the median of their ratios round by round."""
    our_median, peer_median, ratio = _median(ours), _median(peer), paired_ratio(ours, peer)
    return Figure(
        figure=name,
        ours=_rounded(our_median),
        peer=_rounded(peer_median),
        ratio=None if ratio is None else round(ratio, 3),
        unit=unit,
        target=None if target is None else str(target),
        held=None if target is None else target.held(our_median, ratio),
        against=against,
        note=note,
    )


def paired_ratio(ours: Sequence[float], peer: Sequence[float]) -> float | None:
    """The median of ours over the peer's, round by round; None if a side is missing or measured nothing."""
    if not ours or not peer or not all(peer):
        return None
    if len(ours) != len(peer):
        return median(ours) / median(peer)
    return median(one / other for one, other in zip(ours, peer, strict=True))


def write(name: str, figures: Sequence[Figure], directory: Path = OUT) -> Path:
    """Writes the list of figures to benchmarks/out/NAME.json."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    return path


def show(name: str, figures: Sequence[Figure], console: Console) -> None:
    table = Table("figure", "ours", "peer", "ratio", "unit", "target", "held", "against", title=name)
    for one in figures:
        table.add_row(*cells(one), style="red" if one.held is False else None)
    console.print(table)
    for note in dict.fromkeys(f"{one.against}: {one.note}" for one in figures if one.note):
        console.print(note, style="yellow", highlight=False, markup=False)


def cells(one: Figure) -> tuple[str, ...]:
    """A figure as text: name, ours, peer, ratio, unit, target, held, against."""
    held = {True: "yes", False: "no", None: ""}[one.held]
    ours, peer = _text(one.ours), _text(one.peer) if one.against else ""
    ratio = "" if one.ratio is None else f"{one.ratio:,g}"
    return (one.figure, ours, peer, ratio, one.unit, one.target or "", held, one.against)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 3) if value < 100 else round(value)


def _text(value: float | None) -> str:
    return "missing" if value is None else f"{value:,g}" if value < 1000 else f"{value:,.0f}"
