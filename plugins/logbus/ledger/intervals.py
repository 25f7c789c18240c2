"""The clock cut into a pipeline's intervals, counted from the epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from logbus.model import EPOCH, Interval, utc


def floor(instant: datetime, length: timedelta) -> datetime:
    """The start of the interval that holds the instant."""
    return utc(instant) - (utc(instant) - EPOCH) % length


def ceiling(instant: datetime, length: timedelta) -> datetime:
    """The start of the first interval that begins at the instant or later."""
    return utc(instant) + (EPOCH - utc(instant)) % length


def intervals(start: datetime, end: datetime, length: timedelta) -> Iterator[Interval]:
    """The whole intervals within [start, end)."""
    while start + length <= end:
        yield Interval(start, start + length)
        start += length


def instant(timestamp_ms: int) -> datetime:
    """The instant of a record's timestamp."""
    return EPOCH + timedelta(milliseconds=timestamp_ms)
