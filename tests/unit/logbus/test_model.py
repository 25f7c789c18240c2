from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from logbus.model import Interval, OffsetRange, instant_text, parse_instant, timestamp_text

TEN = datetime(2015, 5, 17, 10, tzinfo=UTC)


def test_the_hour_of_an_instant_holds_it_and_is_said_in_utc() -> None:
    half_past_noon_in_kolkata = datetime(2015, 5, 17, 16, 15, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert Interval.hour(half_past_noon_in_kolkata) == Interval(TEN, TEN + timedelta(hours=1))


def test_a_naive_datetime_and_an_interval_that_ends_before_it_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="no time zone: give an aware datetime"):
        Interval.hour(datetime(2015, 5, 17, 10))
    with pytest.raises(ValueError, match="ends after it starts"):
        Interval(TEN, TEN)


@pytest.mark.parametrize("text", ["2015-05-17T10:00:00Z", "2015-05-17T10:00", "2015-05-17T12:00:00+02:00"])
def test_an_instant_is_read_in_every_spelling_and_written_in_one(text: str) -> None:
    assert instant_text(parse_instant(text)) == "2015-05-17T10:00:00Z"


def test_a_range_counts_the_offsets_that_can_be_read() -> None:
    part = OffsetRange(topic="t", partition=0, start_offset=10, end_offset=30, lost=5)
    assert (part.count, part.readable_from) == (15, 15)


def test_a_record_is_stamped_with_an_instant_or_with_a_number_that_is_none() -> None:
    assert timestamp_text(253_402_300_799_999) == "9999-12-31T23:59:59.999000Z"
    assert [timestamp_text(number) for number in (-1, 253_402_300_800_000, 2**63 - 1)] == [None, None, None]
