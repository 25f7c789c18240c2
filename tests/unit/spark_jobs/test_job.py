from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import FrozenWindow, OffsetRange
from logbus_spark.records import TaskPlan, pack

from tests.support.fake_ledger import window as frozen

START = datetime(2015, 5, 17, 10, tzinfo=UTC)


def window(number: int, *ranges: tuple[int, int, int]) -> FrozenWindow:
    parts = [OffsetRange(topic="t", partition=partition, start_offset=start, end_offset=end) for partition, start, end in ranges]
    return frozen(START + timedelta(hours=number), id=number, topic="t", ranges=tuple(parts))


@st.composite
def chains(draw: st.DrawFn) -> list[FrozenWindow]:
    """Windows with adjacent ranges, like frozen ones, some left out as in a reload of a few."""
    partitions = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.lists(st.integers(0, 500), min_size=partitions, max_size=partitions), min_size=1, max_size=12))
    offsets = [0] * partitions
    found = []
    for number, counts in enumerate(lengths):
        ranges = [(part, offsets[part], offsets[part] + count) for part, count in enumerate(counts)]
        offsets = [end for _, _, end in ranges]
        found.append(window(number, *ranges))
    return [item for item in found if draw(st.booleans())]


@given(chains(), st.integers(1, 9), st.integers(1, 300))
def test_every_record_is_read_once_and_knows_its_window(windows: list[FrozenWindow], tasks: int, minimum: int) -> None:
    expected = {
        (part.partition, offset): item.id
        for item in windows
        for part in item.ranges
        for offset in range(part.start_offset, part.end_offset)
    }
    planned = [
        ((run.partition, offset), window_id)
        for plan in pack(windows, tasks, records_per_task_min=minimum)
        for run in plan.runs
        for offsets in [range(run.start_offset, run.end_offset)]
        for window_id, start, end in run.split(offsets)
        for offset in offsets[start:end]
    ]
    assert len(planned) == len(expected)
    assert dict(planned) == expected


def count_of(plan: TaskPlan) -> int:
    return sum(run.end_offset - run.start_offset for run in plan.runs)


@given(chains(), st.integers(1, 9))
def test_no_more_tasks_than_asked_for_and_none_has_more_than_its_share(windows: list[FrozenWindow], tasks: int) -> None:
    plans = pack(windows, tasks, records_per_task_min=1)
    counts = [count_of(plan) for plan in plans]
    assert len(plans) <= tasks
    assert all(count <= -(-sum(counts) // tasks) for count in counts)


@given(chains(), st.integers(1, 9), st.lists(st.floats(0.5, 400), min_size=4, max_size=4), st.integers(1, 5_000))
def test_no_task_reads_more_bytes_than_allowed_unless_they_are_one_record(
    windows: list[FrozenWindow], tasks: int, sizes: list[float], allowed: int
) -> None:
    plans = pack(windows, tasks, dict(enumerate(sizes)), allowed)
    read = [sum((run.end_offset - run.start_offset) * sizes[run.partition] for run in plan.runs) for plan in plans]
    assert all(size <= allowed + 1e-6 or count_of(plan) == 1 for size, plan in zip(read, plans, strict=True))
    assert sum(map(count_of, plans)) == sum(item.record_count for item in windows)


def test_touching_hours_of_a_partition_are_read_in_one_run() -> None:
    windows = [window(number, (0, number * 100, number * 100 + 100)) for number in range(84)]
    plans = pack(windows, 4)
    assert [len(plan.runs) for plan in plans] == [1, 1, 1, 1]
    assert sum(map(count_of, plans)) == 8_400


def test_few_records_stay_in_one_task() -> None:
    assert len(pack([window(0, (0, 0, 10), (1, 0, 10))], 4)) == 1


def test_hours_that_do_not_touch_are_runs_of_their_own() -> None:
    plans = pack([window(0, (0, 0, 10)), window(5, (0, 50, 60))], 1)
    assert [(run.start_offset, run.end_offset) for run in plans[0].runs] == [(0, 10), (50, 60)]


def test_empty_windows_need_no_task() -> None:
    assert pack([window(0, (0, 5, 5))], 4) == []


def test_declared_losses_are_not_asked_for() -> None:
    whole = window(1, (0, 0, 10))
    lossy = replace(whole, ranges=(replace(whole.ranges[0], lost=4),))
    (plan,) = pack([lossy], 4)
    assert (plan.runs[0].start_offset, plan.runs[0].end_offset) == (4, 10)
