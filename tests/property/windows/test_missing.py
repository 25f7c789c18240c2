"""The missing hours are those found by freezing hour by hour: an hour whose two boundaries are equal offsets holds no record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import FrozenWindow, OffsetRange, Pipeline, milliseconds
from logbus.windows.boundaries import Neighbours, clamp, decide, take_snapshot
from logbus.windows.missing import find_gaps
from logbus.windows.pipeline_chains import tail_of

from tests.support.fake_log import FakeLog
from tests.support.retention import at, chain, hourly

HOURS = 16
NOW = at(HOURS + 0.5)
PARTS = (0, 1)
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")
STAMPS = st.lists(st.floats(0, HOURS + 0.4), max_size=8)


def boundary(log: FakeLog, part: int, hour: int, frozen: dict[tuple[int, int], int]) -> int:
    """The boundary that freezing decides on, between those already frozen."""
    if (part, hour) in frozen:
        return frozen[part, hour]
    lower = max((offset for (number, at_hour), offset in frozen.items() if number == part and at_hour < hour), default=0)
    upper = min((offset for (number, at_hour), offset in frozen.items() if number == part and at_hour > hour), default=None)
    first = log.first_at_or_after("t", [part], milliseconds(at(hour))).get(part)
    return clamp(decide(first, log.end_offsets("t", [part], "read_committed")[part]), Neighbours(lower=lower, upper=upper))


def append(log: FakeLog, stamps: list[list[float]]) -> None:
    for part, hours in zip(PARTS, stamps, strict=True):
        log.append("t", *(milliseconds(at(hour)) for hour in hours), partition=part)


@given(
    before=st.lists(STAMPS, min_size=2, max_size=2),
    since=st.lists(STAMPS, min_size=2, max_size=2),
    kinds=st.lists(st.sampled_from(["loaded", "frozen", "absent", "absent"]), min_size=HOURS, max_size=HOURS),
)
def test_what_is_missing_is_what_freezing_hour_by_hour_finds(
    before: list[list[float]], since: list[list[float]], kinds: list[str]
) -> None:
    """Some records arrive after hours were frozen, some are stamped out of order."""
    log = FakeLog()
    log.create("t", len(PARTS))
    append(log, before)
    frozen: dict[tuple[int, int], int] = {}
    windows: list[FrozenWindow] = []
    for hour, kind in enumerate(kinds):
        if kind != "absent":
            for part in PARTS:
                frozen[part, hour] = boundary(log, part, hour, frozen)
                frozen[part, hour + 1] = boundary(log, part, hour + 1, frozen)
            ranges = tuple(
                OffsetRange(topic="t", partition=part, start_offset=frozen[part, hour], end_offset=frozen[part, hour + 1])
                for part in PARTS
            )
            windows.append(hourly(hour, loaded=kind == "loaded", audited=False, ranges=ranges))
    append(log, since)
    made = chain(windows)
    seen = take_snapshot(log, PIPELINE, {part: tail_of(made, part) for part in PARTS}, NOW)
    gaps = find_gaps(log, PIPELINE, made, seen)
    found = {int((part.start - at(0)).total_seconds() // 3600): gap.is_empty for gap in gaps for part in gap.parts(PIPELINE.grid)}

    loaded = {hour for hour, kind in enumerate(kinds) if kind == "loaded"}
    offsets = {hour: [boundary(log, part, hour, frozen) for part in PARTS] for hour in range(HOURS + 1)}
    begin = min([*(hour for hour, kind in enumerate(kinds) if kind != "absent"), *first_hours(log, frozen)], default=HOURS)
    if begin < HOURS and not windows:
        offsets[begin] = [0, 0]
    expected = {hour: offsets[hour] == offsets[hour + 1] for hour in range(begin, HOURS) if hour not in loaded}
    held = [hour for hour in range(begin, HOURS) if offsets[hour] != offsets[hour + 1]]
    last = max(held, default=-1)
    assert found == {hour: is_empty for hour, is_empty in expected.items() if hour <= last or kinds[hour] == "frozen"}


def first_hours(log: FakeLog, frozen: dict[tuple[int, int], int]) -> list[int]:
    """The hours of the first records, if those come before every window."""
    found = []
    for part in PARTS:
        stamps = log.topics["t"][part].stamps_ms
        limit = min((offset for (number, _), offset in frozen.items() if number == part), default=len(stamps))
        if limit and stamps and stamps[0] is not None:
            found.append((stamps[0] - milliseconds(at(0))) // 3_600_000)
    return found
