"""However a log is cut into epochs, and whichever drivers plan them, each record is read once, in the hour that freezing gives it."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import Grid, Pipeline, instant, milliseconds
from logbus.streams.epochs import EpochPlanner, Reached
from logbus.windows.boundaries import horizon_ms, max_ahead

from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW, at, stamps

PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")
HORIZON = horizon_ms(NOW, max_ahead(PIPELINE))
STAMPS = st.one_of(
    st.floats(0, 40, allow_nan=False).map(lambda hour: stamps(hour)[0]),
    st.sampled_from([-1, HORIZON + 1, 2**50, *stamps(3), *stamps(4)]),
)
LOGS = st.lists(st.lists(STAMPS, max_size=30), min_size=1, max_size=3)
STEPS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8)  # an epoch's offsets; a new driver


def expected_hours(log: list[int]) -> list[float | None]:
    """By offset. The greatest stamp so far decides that is not in the future; at the head of the log the first one that will."""
    usable = [stamp if 0 <= stamp <= HORIZON else -1 for stamp in log]
    first = next((stamp for stamp in usable if stamp >= 0), None)
    greatest = [stamp if stamp >= 0 else first for stamp in accumulate(usable, max)]
    return [None if stamp is None else hour_of(stamp) for stamp in greatest]


def hour_of(stamp_ms: int) -> float:
    return (milliseconds(Grid().floor(instant(stamp_ms))) - milliseconds(at(0))) / 3_600_000


@given(log=LOGS, steps=STEPS)
def test_every_offset_is_planned_once_in_its_hour(log: list[list[int]], steps: list[tuple[int, bool]]) -> None:
    fake, expected = FakeLog.of("t", *log), [expected_hours(partition) for partition in log]
    ends = {partition: len(arrivals) for partition, arrivals in enumerate(log)}
    reached = {partition: Reached(position=0) for partition in ends}
    while True:
        size, is_new_driver = steps[0]
        steps = [*steps[1:], steps[0]]
        if is_new_driver:
            reached = {partition: Reached(position=state.position) for partition, state in reached.items()}
        parts = EpochPlanner(pipeline=PIPELINE, log=fake, now=lambda: NOW, offsets_max=size).plan(reached, ends)
        for part in parts:
            assert part.start_offset == reached[part.partition].position
            hours = set(expected[part.partition][part.start_offset : part.end_offset])
            assert hours == {hour_of(milliseconds(part.hour))}
            reached[part.partition] = Reached(position=part.end_offset, hour=part.hour)
        if not parts:
            break
    unplanned = {partition: log[partition][state.position :] for partition, state in reached.items()}
    assert all(rest == [] or expected[partition][0] is None for partition, rest in unplanned.items())
