from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from logbus.loads.read_tally import FAR_HOURS, HOURS_MAX, NO_HOUR, ReadTally
from logbus.model import DAY, Grid, milliseconds
from logbus_spark.load_task import count
from logbus_spark.records import Records, StagedWindow

SECONDS = Grid(timedelta(seconds=1))
WINDOW = StagedWindow(window_id=1, attempt=1, start_ms=1000, end_ms=2000, staging_table="s", dead_letter_table="d")


def counted(*chunks: list[int], values: list[bytes | None] | None = None, grid: Grid = SECONDS) -> ReadTally:
    """What is counted of chunks of records with these stamps, and with 5, 6, 7... as their hashes."""
    tally = ReadTally()
    for stamps_ms in chunks:
        size = len(stamps_ms)
        records = Records(
            window_id=1,
            partition=0,
            offsets=range(size),
            stamps_ms=stamps_ms,
            keys=[b"k"] * size,
            values=values or [b"value"] * size,
        )
        count(tally, records, range(5, 5 + size), [], WINDOW, pa.array(stamps_ms, pa.int64()), grid)
    return tally


@pytest.mark.parametrize(("stamp", "late", "early"), [(999, 1, 0), (1000, 0, 0), (1999, 0, 0), (2000, 0, 1), (-1, 1, 0)])
def test_a_record_outside_its_hour_is_late_or_early(stamp: int, late: int, early: int) -> None:
    tally = counted([stamp, 1500])
    assert (tally.late, tally.early) == (late, early)


def test_records_are_counted_by_the_interval_that_they_are_stamped_with() -> None:
    assert counted([1000, 1999], [2000, 1500, 999], [0]).hours == {1000: 3, 2000: 1, 0: 2}


def test_records_are_counted_by_the_days_of_a_time_zone() -> None:
    """The 29th of March 2026 has 23 hours in Berlin."""
    midnights = [milliseconds(datetime(2026, 3, *at, tzinfo=UTC)) for at in ((27, 23), (28, 23), (29, 22), (30, 22))]
    last = [midnight - 1 for midnight in midnights]
    days = counted(midnights, last[1:], midnights[1:2], [-1, 0, 253_402_300_799_999], grid=Grid(DAY, "Europe/Berlin")).hours
    assert [days.pop(midnight) for midnight in midnights] == [2, 3, 2, 1]
    assert sorted(days.values()) == [1, 1, 1]
    assert days[NO_HOUR] == days[0] == 1


@pytest.mark.parametrize("stamp", [-1, -(2**63), 253_402_300_800_000, 2**63 - 1])
def test_a_stamp_that_no_calendar_reaches_is_of_no_hour(stamp: int) -> None:
    assert counted([stamp, 1500], [stamp]).hours == {1000: 1, NO_HOUR: 2}


def test_a_thousand_hours_are_counted_each_and_farther_ones_together() -> None:
    hours = counted([hour * 1000 for hour in range(2 * HOURS_MAX)], [5 * HOURS_MAX * 1000, -1]).hours
    assert len(hours) == HOURS_MAX + 2
    assert (hours[FAR_HOURS], hours[NO_HOUR], max(hours)) == (HOURS_MAX + 1, 1, 999_000)


def test_records_are_counted_with_their_bytes_and_their_fingerprint() -> None:
    tally = counted([1000, 1500])
    assert (tally.read, tally.filtered, tally.bytes, tally.fingerprint) == (2, 0, 12, 11)


def test_a_record_without_value_counts_the_bytes_of_its_key() -> None:
    assert counted([1000, 1000], values=[None, b"ab"]).bytes == 4
