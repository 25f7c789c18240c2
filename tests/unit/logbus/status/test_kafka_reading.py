"""Ages come only from what was observed: never above the true age, and none where nothing was observed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from logbus.web.metrics import Arrivals

PLACE = ("t", 0)


def observed(*notes: tuple[int, float]) -> Arrivals:
    """After scrapes that saw these ends at these times."""
    arrivals = Arrivals()
    for end, now in notes:
        arrivals.observe({PLACE: end}, now)
    return arrivals


def test_a_record_waits_since_the_first_note_behind_it() -> None:
    arrivals = observed((10, 100.0), (20, 115.0), (30, 130.0))
    assert arrivals.waiting_seconds(PLACE, 15, 140.0) == 25.0
    assert arrivals.waiting_seconds(PLACE, 20, 140.0) == 10.0


def test_a_group_at_the_end_waits_for_nothing() -> None:
    assert observed((10, 100.0)).waiting_seconds(PLACE, 10, 500.0) == 0.0


def test_what_was_there_before_the_first_note_has_no_known_age() -> None:
    arrivals = observed((10, 100.0), (20, 115.0))
    assert arrivals.waiting_seconds(PLACE, 9, 140.0) is None
    assert arrivals.waiting_seconds(("other", 0), 0, 140.0) is None


def test_a_quiet_partition_does_not_make_records_younger() -> None:
    arrivals = observed((10, 0.0), *((11, float(now)) for now in range(10, 200, 10)))
    assert arrivals.waiting_seconds(PLACE, 10, 200.0) == 190.0


def test_a_topic_recreated_begins_anew_and_one_that_is_gone_is_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.observe({PLACE: 10, ("gone", 0): 5}, 0.0)
    arrivals.observe({PLACE: 3}, 10.0)
    assert arrivals.waiting_seconds(PLACE, 2, 20.0) is None
    assert arrivals.waiting_seconds(PLACE, 3, 20.0) == 0.0
    assert arrivals.waiting_seconds(("gone", 0), 5, 20.0) is None


@given(growth=st.lists(st.integers(0, 5), min_size=1, max_size=80), back=st.integers(0, 100))
def test_thinned_notes_never_make_a_record_older_than_it_is(growth: list[int], back: int) -> None:
    few, all_of_them, end = Arrivals(notes_max=8), Arrivals(), 0
    for now, grown in enumerate(growth):
        end += grown
        few.observe({PLACE: end}, float(now))
        all_of_them.observe({PLACE: end}, float(now))
    offset, now = max(0, end - back), float(len(growth))
    coarse, exact = few.waiting_seconds(PLACE, offset, now), all_of_them.waiting_seconds(PLACE, offset, now)
    assert (coarse is None) == (exact is None)
    assert coarse is None or (exact is not None and 0 <= coarse <= exact)
