from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from logbus.errors import UserError
from logbus.loads.completeness import expected_span, first_gap
from logbus.model import Interval, Pipeline

from tests.support.ledgers import at, hour

DAY = Interval(at(0), at(24))


def pipeline_from(starts_at: datetime | None) -> Pipeline:
    return replace(Pipeline(name="p", topic="t", table="t", parse="lines"), starts_at=starts_at)


def test_windows_that_touch_cover_a_span_in_any_order() -> None:
    assert first_gap(DAY, [hour(number) for number in reversed(range(24))]) is None


def test_the_first_hole_is_named() -> None:
    assert first_gap(DAY, [hour(number) for number in range(24) if number not in (5, 9)]) == hour(5)


def test_what_is_missing_at_the_end_is_named() -> None:
    assert first_gap(DAY, [hour(0)]) == Interval(at(1), at(24))
    assert first_gap(DAY, []) == DAY


def test_a_span_inside_one_window_is_covered_by_it() -> None:
    quarter = Interval(at(1.25), at(1.5))
    assert first_gap(quarter, [hour(1)]) is None


def test_windows_beyond_the_span_do_not_count() -> None:
    assert first_gap(hour(3), [hour(2), hour(4)]) == hour(3)


def test_nobody_waits_for_what_lies_before_the_pipelines_start() -> None:
    assert expected_span(pipeline_from(None), DAY) == DAY
    assert expected_span(pipeline_from(at(20)), DAY) == Interval(at(20), at(24))
    with pytest.raises(UserError, match="will never load"):
        expected_span(pipeline_from(at(24) + timedelta(days=3)), DAY)
