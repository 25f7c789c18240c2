from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.kafka.topics import OffsetAndTimestamp
from logbus.model import Pipeline, milliseconds
from logbus.windows import boundaries
from logbus.windows.boundaries import Neighbours

NOON = datetime(2015, 5, 17, 12, tzinfo=UTC)
AT = milliseconds(NOON)
HORIZON = boundaries.horizon_ms(NOON)
IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))


def record(offset: int, timestamp_ms: int) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(offset=offset, timestamp_ms=timestamp_ms)


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), 0),
        (datetime(2015, 5, 17, 14, tzinfo=UTC), 1431871200000),
    ],
)
def test_milliseconds_round_up_so_that_at_or_after_stays_exact(instant: datetime, expected: int) -> None:
    assert milliseconds(instant) == expected


def test_the_boundary_is_the_first_record_at_or_after_the_instant() -> None:
    assert boundaries.decide(record(42, AT), end_offset=100) == 42


def test_the_boundary_is_the_end_read_before_the_search_where_no_record_follows() -> None:
    assert boundaries.decide(None, end_offset=100) == 100


def test_a_record_appended_after_the_end_was_read_does_not_move_the_boundary_behind_it() -> None:
    assert boundaries.decide(record(105, AT), end_offset=100) == 100


@pytest.mark.parametrize(("ahead", "expected"), [(timedelta(hours=1), False), (timedelta(hours=1, milliseconds=1), True)])
def test_a_stamp_more_than_an_hour_ahead_of_the_clock_is_no_evidence(ahead: timedelta, expected: bool) -> None:
    assert boundaries.needs_scan(record(0, milliseconds(NOON + ahead)), HORIZON) is expected


def test_the_search_goes_on_behind_a_stamp_of_2099() -> None:
    records = [record(7, AT - 5), record(8, IN_2099), record(9, AT - 1), record(10, AT + 1)]
    found = boundaries.scan(records, at_ms=AT, horizon=HORIZON, end_offset=20).offset
    assert found == 10


def test_the_search_ends_at_the_end_of_the_log_where_only_the_future_follows() -> None:
    found = boundaries.scan([record(3, IN_2099)], at_ms=AT, horizon=HORIZON, end_offset=4)
    assert (found.offset, found.first_stamped) == (4, None)


AT_THE_HEAD = Neighbours(lower=0, lower_is_anchor=True)


@pytest.mark.parametrize("unusable", [IN_2099, -1])
def test_records_without_a_usable_time_at_the_very_head_of_a_log_go_with_the_first_hour(unusable: int) -> None:
    found = boundaries.scan([record(0, unusable), record(1, AT + 1)], at_ms=AT, horizon=HORIZON, end_offset=2)
    assert boundaries.with_the_head(found.offset, found.first_stamped, AT_THE_HEAD) == 0


def test_a_log_without_any_usable_time_is_all_head() -> None:
    assert boundaries.with_the_head(7, None, AT_THE_HEAD) == 0
    assert boundaries.with_the_head(7, None, Neighbours(lower=0)) == 7


def test_stamps_of_the_future_behind_an_older_record_do_not_pull_the_first_boundary_back() -> None:
    records = [record(0, AT - 1), record(1, IN_2099), record(2, AT + 1)]
    found = boundaries.scan(records, at_ms=AT, horizon=HORIZON, end_offset=3)
    assert boundaries.with_the_head(found.offset, found.first_stamped, AT_THE_HEAD) == 2


@pytest.mark.parametrize(("offset", "upper", "expected"), [(5, 20, 10), (15, 20, 15), (25, 20, 20), (1_000, None, 1_000)])
def test_a_boundary_stays_between_its_frozen_neighbours(offset: int, upper: int | None, expected: int) -> None:
    assert boundaries.clamp(offset, Neighbours(lower=10, upper=upper)) == expected


def pipeline(**settings: object) -> Pipeline:
    return Pipeline(name="p", topic="t", table="t", parse="lines", settings=settings)


def test_how_far_ahead_a_stamp_may_lie_is_the_pipelines_own_word() -> None:
    assert boundaries.max_ahead(pipeline()) == timedelta(hours=1)
    assert boundaries.max_ahead(pipeline(max_ahead_minutes=2.5)) == timedelta(seconds=150)
    assert boundaries.horizon_ms(NOON, timedelta(minutes=10)) == AT + 600_000
