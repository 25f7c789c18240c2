"""The arithmetic of latencies: percentiles, and the instant from which a request is timed."""

from __future__ import annotations

import pytest

from benchmarks.costs.load import SteadyProducer, percentile, wait_for


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_a_percentile_is_one_of_the_values(share, value):
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value
    assert percentile([7.0], share) == 7.0


def test_a_request_counts_from_when_it_was_due_where_the_answer_before_it_was_late():
    slept = []
    assert wait_for(10.0, clock=lambda: 12.5, sleep=slept.append) == 10.0
    assert slept == []


def test_a_request_in_time_does_not_count_what_the_sleep_took_too_long():
    now = [9.75]

    def sleep(seconds: float) -> None:
        now[0] += seconds + 0.125

    assert wait_for(10.0, clock=lambda: now[0], sleep=sleep) == 10.125


def test_latencies_are_those_of_the_requests_that_were_due_between_two_instants():
    producer = SteadyProducer("127.0.0.1:1", "t", b"")
    producer._noted = [(1.0, 0.001), (2.0, 0.5), (3.0, 0.002)]
    assert producer.latencies_ms(1.5, 3.0) == [500.0]
