from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.kafka.topics import FoundRecord
from logbus.ledger import boundaries
from logbus.model import Pipeline, milliseconds

NOON = datetime(2015, 5, 17, 12, tzinfo=UTC)
AT = milliseconds(NOON)
HORIZON = boundaries.horizon_ms(NOON)


def record(offset: int, timestamp_ms: int) -> FoundRecord:
    return FoundRecord(offset=offset, timestamp_ms=timestamp_ms)


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


@pytest.mark.parametrize(("ahead", "expected"), [(timedelta(hours=1), False), (timedelta(hours=1, milliseconds=1), True)])
def test_a_stamp_more_than_an_hour_ahead_of_the_clock_is_no_evidence(ahead: timedelta, expected: bool) -> None:
    assert boundaries.needs_scan(record(0, milliseconds(NOON + ahead)), HORIZON) is expected


def pipeline(**settings: object) -> Pipeline:
    return Pipeline(name="p", topic="t", table="t", parse="lines", settings=settings)


def test_how_far_ahead_a_stamp_may_lie_is_the_pipelines_own_word() -> None:
    assert boundaries.max_ahead(pipeline()) == timedelta(hours=1)
    assert boundaries.max_ahead(pipeline(max_ahead_minutes=2.5)) == timedelta(seconds=150)
    assert boundaries.horizon_ms(NOON, timedelta(minutes=10)) == AT + 600_000
