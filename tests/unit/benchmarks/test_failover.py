"""What a leader that dies or is stopped means for its clients, computed from what they noted."""

from __future__ import annotations

import pytest

from benchmarks.failover import longest_gap_ms


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ({0: [0.5, 1.5, 2.5, 3.5], 1: [1.0, 2.0, 3.0]}, 1000),
        ({0: [0.5, 1.5, 2.5, 3.5], 1: [1.5, 3.0]}, 1500),  # one partition that waited longer than the others
        ({0: [1.1, 1.2]}, 1800),  # until the end of the span
        ({0: [2.8, 2.9]}, 1800),  # from its beginning on
        ({0: [0.5, 3.5]}, 2000),  # all of it
        ({}, 2000),
    ],
)
def test_the_longest_gap_is_that_of_any_partition_within_the_span(times, longest):
    assert longest_gap_ms(times, 1.0, 3.0) == pytest.approx(longest)
