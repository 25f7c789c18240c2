"""The reported lag equals a naive count, hour by hour and record by record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import OffsetRange, Pipeline
from logbus.status.lag import lag_over
from logbus.windows.pipeline_chains import Anchor

from tests.support.fake_log import FakeLog
from tests.support.retention import at, chain, hourly, stamps

HOURS = 10
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")


@given(
    records=st.lists(st.floats(0, HOURS - 0.01), max_size=25).map(sorted),
    kinds=st.lists(st.sampled_from(["loaded", "loaded", "frozen", "absent"]), min_size=HOURS, max_size=HOURS),
    closed_hours=st.integers(0, HOURS),
)
def test_lag_is_what_counting_hour_by_hour_gives(records: list[float], kinds: list[str], closed_hours: int) -> None:
    """Hours from `closed_hours` on are open, so none of them is frozen."""
    now = at(closed_hours + 0.5)
    records = [record for record in records if at(record) <= now]
    log = FakeLog.of("t", stamps(*records))
    in_hour = [[record for record in records if hour <= record < hour + 1] for hour in range(HOURS)]
    starts = [sum(len(found) for found in in_hour[:hour]) for hour in range(HOURS + 1)]
    states = {hour: kind for hour, kind in enumerate(kinds[:closed_hours]) if kind != "absent"}
    windows = [
        hourly(
            hour,
            loaded=kind == "loaded",
            ranges=(OffsetRange(topic="t", partition=0, start_offset=starts[hour], end_offset=starts[hour + 1]),),
        )
        for hour, kind in states.items()
    ]
    lag = lag_over(PIPELINE, chain(windows, anchors={0: Anchor(offset=0, at=None)}), log, now, (0,))

    loaded = {hour for hour, kind in states.items() if kind == "loaded"}
    closed = [found if hour < closed_hours else [] for hour, found in enumerate(in_hour)]
    waiting = [hour for hour, found in enumerate(closed) if found and hour not in loaded]
    known = [*waiting, *states]
    last = max([*waiting, *(hour for hour in states if in_hour[hour])], default=-1)  # nothing is missing after the last record
    quiet = [hour for hour in range(min(known), last + 1) if hour not in loaded | {*waiting}] if known else []
    quiet += [hour for hour, kind in states.items() if kind == "frozen" and hour > last]
    assert (lag.hours_behind, lag.hours_empty) == (len(waiting), len(quiet))
    assert lag.oldest_hour == (at(waiting[0]) if waiting else None)
    assert lag.records == sum(len(closed[hour]) for hour in waiting)
    assert lag.records_open == len(records) - sum(map(len, closed))
