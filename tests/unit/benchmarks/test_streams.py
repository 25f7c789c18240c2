"""The records of the streams benchmark are what its page says of them."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import fmean

from benchmarks.stream_data import HOSTS, LATE_MS_MAX, requests

HOUR_MS = 3_600_000


def test_one_request_in_a_hundred_is_late_and_none_from_the_future():
    stamped = [(arrived_ms, json.loads(text)) for arrived_ms, text in requests(10_000, hours=3)]
    late = [arrived_ms - request["at"] for arrived_ms, request in stamped if arrived_ms != request["at"]]
    assert 50 < len(late) < 200
    assert min(late) > 0
    assert max(late) <= LATE_MS_MAX
    assert len({request["host"] for _, request in stamped}) == HOSTS


def test_requests_arrive_in_order_over_all_hours_and_are_of_140_bytes():
    stamped = list(requests(10_000, hours=3))
    assert all(before <= after for (before, _), (after, _) in pairwise(stamped))
    assert 3 * HOUR_MS - 2_000 < stamped[-1][0] - stamped[0][0] < 3 * HOUR_MS
    assert 130 < fmean(len(text) for _, text in stamped) < 150
