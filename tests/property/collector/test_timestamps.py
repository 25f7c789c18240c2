"""Recognising a timestamp never raises, whatever a line holds; a written timestamp reads back as the same time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from tests.support.recognising import recognise

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=ZONES)


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(st.binary(max_size=300))
def test_any_bytes_are_recognised_or_not(line: bytes) -> None:
    timestamp_ms, host = recognise(line)[:2]
    assert timestamp_ms is None or isinstance(timestamp_ms, int)
    assert host is None or host


@given(MOMENTS)
def test_a_combined_time_is_read_back(moment: datetime) -> None:
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    written = f"{moment:%d}/{months[moment.month - 1]}/{moment:%Y:%H:%M:%S %z}"
    line = f'host - - [{written}] "GET / HTTP/1.0" 200 1'.encode()
    assert recognise(line).timestamp_ms == milliseconds(moment.replace(microsecond=0))


@given(MOMENTS)
def test_an_iso_time_is_read_back_to_the_millisecond(moment: datetime) -> None:
    assert recognise(f"{moment.isoformat()} text".encode()).timestamp_ms == milliseconds(moment)
