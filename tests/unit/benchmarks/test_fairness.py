"""The rows computed from the bystander's waits and the broker's memory."""

from __future__ import annotations

import pytest

from benchmarks.fairness import Outcome, part_figures
from benchmarks.figures import Figure

WAIT, TAKES, KEPT, PEAK = (f"much: {what}" for what in ("others wait at most", "takes", "memory kept", "memory at its peak"))


def rows(*outcomes: dict[str, float], idle: tuple[float, ...] = (1.0,), seconds_max: float | None = None) -> dict[str, Figure]:
    usual = {"wait_ms": 10.0, "seconds": 1.0, "kept_mib": 1.0, "peak_mib": 100.0}
    measured = [Outcome(**{**usual, **outcome}) for outcome in outcomes]
    return {row.figure: row for row in part_figures(list(idle), {"much": measured}, {"much": seconds_max})}


@pytest.mark.parametrize(
    ("figure", "outcome", "bounds", "held"),
    [
        (WAIT, {"wait_ms": 49}, {}, True),
        (WAIT, {"wait_ms": 51}, {}, False),
        (WAIT, {"wait_ms": 89}, {"idle": (1.0, 9.0, 3.0)}, True),  # a machine that is slow by itself is allowed for
        (KEPT, {"kept_mib": 65}, {}, False),
        (PEAK, {"kept_mib": 65}, {}, None),  # memory that is kept has a bound, and its peak has none
        (TAKES, {"seconds": 6}, {"seconds_max": 5}, False),
        (TAKES, {"seconds": 6}, {}, None),
    ],
)
def test_a_figure_is_held_within_its_bound(figure, outcome, bounds, held):
    assert rows(outcome, **bounds)[figure].held is held


def test_the_median_of_the_rounds_is_reported():
    assert rows(*({"wait_ms": wait} for wait in (1, 2, 300)))[WAIT].ours == 2
