"""What a bystander reports of its waits."""

from __future__ import annotations

import pytest

from benchmarks.costs.bystander import EVERY_SECONDS, Waits


@pytest.fixture
def waits() -> Waits:
    waits = Waits(0.0)
    waits.asked()
    return waits


def ms(longest, most):
    return pytest.approx(longest), pytest.approx(most)


def test_the_longest_wait_is_reported_once_with_what_most_waited_at_most(waits):
    for late in (0.001, 0.004, 0.002):
        waits.answered(waits.due + late)
        waits.asked()
    waits.answered(waits.due)
    assert waits.tell(1.0) == ms(4, 4)
    assert waits.tell(1.0) == ms(0, 0)
    for _ in range(200):
        waits.asked()
        waits.answered(waits.due + 0.001)
    waits.asked()
    waits.answered(waits.due + 0.01)
    assert waits.tell(waits.due) == ms(10, 1)


def test_an_answer_that_is_missing_counts_as_far_as_it_is(waits):
    assert waits.tell(0.5) == ms(500, 500)
    waits.answered(0.7)
    assert waits.tell(0.7) == ms(700, 700)


def test_a_question_that_was_not_asked_in_time_waits_since_it_was_due_and_a_long_silence_is_missed_once(waits):
    waits.answered(EVERY_SECONDS * 1.5)
    waits.asked()
    waits.answered(EVERY_SECONDS * 2.5)
    assert waits.tell(1.0) == ms(EVERY_SECONDS * 1500, EVERY_SECONDS * 1500)
    waits.asked()
    waits.answered(10.0)
    waits.tell(10.0)
    waits.asked()
    waits.answered(10.001)
    assert waits.tell(10.001) == ms(1, 1)
