from __future__ import annotations

from datetime import UTC, datetime, timedelta

from logbus.windows.gaps import Missing, find_gaps
from logbus.windows.model import FrozenWindow, Interval, Pipeline

from tests.support.fake_ledger import window

DAY = datetime(2015, 5, 17, tzinfo=UTC)
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")


def hour(number: int) -> Interval:
    return Interval.hour(DAY + timedelta(hours=number))


def frozen(number: int, attempt: int | None = 1) -> FrozenWindow:
    return window(DAY + timedelta(hours=number), attempt=attempt)


def gaps(windows: list[FrozenWindow], closed: range = range(0)) -> list[tuple[int, Missing]]:
    found = find_gaps(PIPELINE, windows, map(hour, closed))
    return [(gap.interval.start.hour, gap.missing) for gap in found]


def test_a_chain_that_is_loaded_has_none() -> None:
    assert gaps([frozen(9), frozen(10)], range(9, 11)) == []


def test_closed_hours_nobody_froze_are_gaps_before_between_and_behind_the_windows() -> None:
    found = gaps([frozen(9), frozen(11)], range(8, 13))
    assert found == [(8, Missing.NOT_FROZEN), (10, Missing.NOT_FROZEN), (12, Missing.NOT_FROZEN)]


def test_a_frozen_window_without_a_load_is_a_gap() -> None:
    assert gaps([frozen(9), frozen(10, attempt=None)], range(9, 11)) == [(10, Missing.NOT_LOADED)]


def test_a_hole_between_windows_is_a_gap_though_the_log_has_nothing_of_it_any_more() -> None:
    assert gaps([frozen(9), frozen(12)]) == [(10, Missing.NOT_FROZEN), (11, Missing.NOT_FROZEN)]


def test_hours_inside_a_long_window_are_no_gaps() -> None:
    long = FrozenWindow(
        **{name: getattr(frozen(9), name) for name in FrozenWindow.__dataclass_fields__ if name != "interval"},
        interval=Interval(DAY + timedelta(hours=9), DAY + timedelta(hours=12)),
    )
    assert gaps([long], range(8, 13)) == [(8, Missing.NOT_FROZEN), (12, Missing.NOT_FROZEN)]


def test_without_windows_every_closed_hour_is_missing() -> None:
    assert gaps([], range(2)) == [(0, Missing.NOT_FROZEN), (1, Missing.NOT_FROZEN)]
