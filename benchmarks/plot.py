"""Horizontal bars in panels, as SVG text: no library, no embedded fonts, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL, VALUE = 860, 240, 90
ROW, BAR, TITLE, GAP = 24, 16, 30, 18
OURS, PEER = "#2f6fde", "#9aa4b2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; None has no length."""

    label: str
    value: float | None
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Bars of one unit."""

    title: str
    bars: Sequence[Bar]


def svg(panels: Sequence[Panel]) -> str:
    """All panels, one below the other."""
    parts, top = [], GAP
    for panel in panels:
        parts.append(_panel(panel, top))
        top += TITLE + ROW * len(panel.bars) + GAP
    style = "text{font:13px sans-serif;fill:#667085}.t{font-weight:bold;font-size:14px}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    return f"{head}\n<style>{style}</style>\n{''.join(parts)}</svg>\n"


def _panel(panel: Panel, top: int) -> str:
    longest = max((bar.value or 0 for bar in panel.bars), default=0) or 1
    rows = (_row(bar, longest, top + TITLE + number * ROW) for number, bar in enumerate(panel.bars))
    return f'<text class="t" x="0" y="{top + 14}">{escape(panel.title)}</text>\n{"".join(rows)}'


def _row(bar: Bar, longest: float, top: int) -> str:
    value = bar.value or 0
    length = max(1.0, (WIDTH - LABEL - VALUE) * value / longest)
    middle, colour = top + BAR - 3, OURS if bar.ours else PEER
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
        f'<text x="{LABEL + length + 6:.1f}" y="{middle}">{_short(value)}</text>\n'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
