from __future__ import annotations

from datetime import UTC, datetime

from logbus.loads.tally import problems
from logbus.model import OffsetRange, PartitionTally

from tests.support.fake_ledger import window

WINDOW = window(
    datetime(2015, 5, 17, 10, tzinfo=UTC),
    ranges=(
        OffsetRange(topic="t", partition=0, start_offset=10, end_offset=20),
        OffsetRange(topic="t", partition=1, start_offset=5, end_offset=5),
    ),
)


def tally(**changes: int) -> PartitionTally:
    values = {"loaded": 9, "dead_lettered": 1, "distinct_offsets": 10, "min_offset": 10, "max_offset": 19, **changes}
    return PartitionTally(partition=0, **values)


def found(part: PartitionTally, *, gaps_allowed: bool = False, filtered: int = 0) -> list[str]:
    return problems(WINDOW, {0: part}, {0: filtered}, gaps_allowed=gaps_allowed)


def test_rows_dead_letters_and_filtered_records_that_cover_the_range_are_exact() -> None:
    assert found(tally()) == found(tally(loaded=7, distinct_offsets=8), filtered=2) == []


def test_a_missing_record_is_named_with_its_partition_and_how_many_unless_gaps_are_declared() -> None:
    one_less = tally(loaded=8, distinct_offsets=9)
    assert found(one_less) == ["t-0 [10, 20) holds 10 records, accounted for: 9 (-1)"]
    assert found(one_less, gaps_allowed=True) == []


def test_more_rows_than_the_range_holds_are_a_problem_even_where_gaps_are_declared() -> None:
    assert "accounted for: 11 (+1)" in found(tally(loaded=10), gaps_allowed=True)[0]


def test_a_row_twice_in_place_of_another_is_found_though_the_count_is_right() -> None:
    assert found(tally(distinct_offsets=9)) == ["t-0 [10, 20): 10 rows, 9 offsets (1 twice)"]


def test_rows_outside_the_range_are_found_though_the_count_is_right() -> None:
    assert "a row of offset 9, before the range" in found(tally(min_offset=9))[0]
    assert "a row of offset 20, after the range" in found(tally(max_offset=20))[0]


def test_rows_of_a_partition_that_is_not_the_windows_are_found() -> None:
    stranger = PartitionTally(partition=7, loaded=1, distinct_offsets=1, min_offset=0, max_offset=0)
    assert "partition 7 has rows but is not part of the window" in problems(
        WINDOW, {0: tally(), 7: stranger}, {}, gaps_allowed=False
    )


def test_a_partition_without_any_row_is_missed() -> None:
    assert problems(WINDOW, {}, {}, gaps_allowed=False) == ["t-0 [10, 20) holds 10 records, accounted for: 0 (-10)"]
