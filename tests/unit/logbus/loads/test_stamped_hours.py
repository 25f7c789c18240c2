from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.loads import read_tally
from logbus.loads.completeness import HourCount, StampedHours, holding_span
from logbus.loads.read_tally import FAR_HOURS, NO_HOUR, nearest_hours
from logbus.model import EPOCH, Interval, Pipeline
from logbus.model import HOUR as HOUR_LONG

from tests.support.ledgers import at

HOUR = Interval(at(10), at(11))
HISTOGRAMS = st.dictionaries(st.integers(0, 30) | st.just(NO_HOUR), st.integers(1, 9)).map(Counter)


def counted(number: float, count: int) -> HourCount:
    return HourCount(window=at(10), hour=at(number), count=count)


def in_window(number: float, count: int) -> HourCount:
    return HourCount(window=at(number), hour=at(10), count=count)


def test_an_hour_that_is_whole_needs_no_words() -> None:
    found = StampedHours(interval=HOUR, own=60)
    assert (found.sentences(), found.is_remarkable, found.elsewhere, found.strangers) == ([], False, 0, 0)


def test_with_which_hours_a_windows_records_are_stamped_is_said() -> None:
    found = StampedHours(interval=HOUR, own=20, others=(counted(9, 3), counted(11, 1)), far=2, unstamped=5)
    assert found.sentences() == [
        "here, but stamped otherwise: 3 with 2015-05-17T09:00:00Z, 1 with 2015-05-17T11:00:00Z, "
        "2 with hours farther away than 1000 others",
        "here, without a usable timestamp: 5",
    ]
    assert found.summary()["other_hours"] == [
        {"hour": "2015-05-17T09:00:00Z", "records": 3},
        {"hour": "2015-05-17T11:00:00Z", "records": 1},
    ]


def test_a_sentence_names_a_few_and_how_many_more_there_are() -> None:
    found = StampedHours(interval=HOUR, own=0, in_others=tuple(in_window(11 + number, 1) for number in range(7)))
    assert found.sentences()[0].endswith("1 in window 2015-05-17T15:00:00Z and 2 more")


@pytest.mark.parametrize(("elsewhere", "whole", "is_remarkable"), [(9, 9, False), (10, 1000, False), (11, 1000, True)])
def test_a_few_requests_that_were_logged_after_their_hour_are_not_remarkable(
    elsewhere: int, whole: int, is_remarkable: bool
) -> None:
    assert StampedHours(interval=HOUR, own=whole, in_others=(in_window(11, elsewhere),)).is_remarkable is is_remarkable
    assert StampedHours(interval=HOUR, own=whole, others=(counted(9, elsewhere),)).is_remarkable is is_remarkable


@given(parts=st.lists(HISTOGRAMS, max_size=4), near=st.integers(0, 30))
def test_bounding_the_parts_and_bounding_their_sum_are_the_same(parts: list[Counter[int]], near: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_tally, "HOURS_MAX", 3)
        found = nearest_hours(sum((nearest_hours(part, near) for part in parts), Counter()), near)
        assert found == nearest_hours(sum(parts, Counter()), near)
    assert sum(found.values()) == sum(sum(part.values()) for part in parts)
    assert len([hour for hour in found if hour not in (NO_HOUR, FAR_HOURS)]) <= 3


SPAN = Interval(EPOCH + 3 * HOUR_LONG, EPOCH + 4 * HOUR_LONG)
MINUTES = st.integers(0, 10 * 60)


def pipeline(lateness: int = 5, ahead: int | None = None, interval: timedelta = HOUR_LONG) -> Pipeline:
    settings = {} if ahead is None else {"max_ahead_minutes": ahead}
    return Pipeline(
        name="p", topic="t", table="t", parse="lines", interval=interval, lateness=timedelta(minutes=lateness), settings=settings
    )


@pytest.mark.parametrize(
    ("found", "lateness", "hours"),
    [
        (pipeline(), None, 2),  # five minutes for late records and an hour for fast clocks reach into the second hour after
        (pipeline(lateness=0), None, 1),
        (pipeline(lateness=0, ahead=0), None, 0),
        (pipeline(ahead=10), None, 1),
        (pipeline(), timedelta(hours=3), 4),
        (pipeline(interval=timedelta(minutes=15)), None, 1.25),
    ],
)
def test_whoever_waits_for_stamps_waits_for_late_records_and_fast_clocks(
    found: Pipeline, lateness: timedelta | None, hours: float
) -> None:
    assert holding_span(found, SPAN, lateness) == Interval(SPAN.start, SPAN.end + hours * HOUR_LONG)


@given(
    arrivals=st.lists(st.tuples(MINUTES, st.integers(-180, 60)), max_size=40),
    lateness=st.integers(0, 90),
    ahead=st.integers(0, 60),
)
def test_no_record_that_came_in_time_lies_outside_of_the_windows_that_are_waited_for(
    arrivals: list[tuple[int, int]], lateness: int, ahead: int
) -> None:
    """Records by arrival minute and how far ahead each is stamped; boundaries are computed literally by their definition."""
    log = [(came, came + min(skew, ahead)) for came, skew in sorted(arrivals)]
    waited = holding_span(pipeline(ahead=ahead), SPAN, timedelta(minutes=lateness))

    def boundary(at: datetime) -> int:
        minute = (at - EPOCH) / timedelta(minutes=1)
        return next((offset for offset, (_, stamp) in enumerate(log) if stamp >= minute), len(log))

    first, end = boundary(waited.start), boundary(waited.end)
    for offset, (came, stamp) in enumerate(log):
        if 180 <= stamp < 240 and came <= 240 + lateness:
            assert first <= offset < end
