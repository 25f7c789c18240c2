"""Whatever is loaded, audited, frozen, held or late: managed retention deletes no record that is still needed."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from logbus.model import FrozenWindow, OffsetRange
from logbus.status.retention_plan import plan_topic
from logbus.windows.pipeline_chains import Anchor, PipelineChain

from tests.support.retention import at, chain, hourly, policy, state

HOURS = 12
END = 40
NOW = at(20)


@st.composite
def chains(draw: st.DrawFn, name: str) -> PipelineChain:
    """A pipeline whose hours have random boundaries; some are not frozen, not loaded, not audited, being loaded."""
    boundaries = sorted(draw(st.lists(st.integers(0, END), min_size=HOURS + 1, max_size=HOURS + 1)))
    windows = []
    for hour in range(HOURS):
        kind = draw(st.sampled_from(["audited"] * 6 + ["loaded", "frozen", "absent"]))
        ranges = (OffsetRange(topic="t", partition=0, start_offset=boundaries[hour], end_offset=boundaries[hour + 1]),)
        if kind != "absent":
            windows.append(hourly(hour, loaded=kind != "frozen", audited=kind == "audited", ranges=ranges, pipeline=name))
    running = draw(st.frozensets(st.integers(0, HOURS - 1), max_size=2))
    return chain(windows, pipeline=name, anchors={0: Anchor(offset=boundaries[0], at=at(0))}, running=running)


def needs(pipeline: PipelineChain, offset: int, given_up: set[FrozenWindow]) -> bool:
    """Computed naively: does the pipeline still need the record at this offset?"""
    if offset < pipeline.anchors[0].offset:
        return False
    owners = [window for window in pipeline.windows if window.ranges[0].start_offset <= offset < window.ranges[0].end_offset]
    if not owners:
        return True
    settled = owners[0].audited_at is not None and owners[0].id not in pipeline.running
    return not settled and owners[0] not in given_up


@given(
    readers=st.tuples(chains("p"), chains("q")),
    start=st.integers(0, END),
    hours=st.integers(0, 20) | st.none(),
    size=st.integers(0, 1200) | st.none(),
    max_hold=st.integers(0, 10),
    when_overdue=st.sampled_from(["alarm", "delete"]),
)
def test_nothing_goes_that_a_pipeline_needs_or_that_is_younger_than_the_limit(
    readers: tuple[PipelineChain, PipelineChain],
    start: int,
    hours: int | None,
    size: int | None,
    max_hold: int,
    when_overdue: str,
) -> None:
    hours = 5 if hours is None and size is None else hours
    limit = policy(hours=hours, retain_bytes=size, max_hold=timedelta(hours=max_hold), when_overdue=when_overdue)
    plan = plan_topic(limit, state(start=start, end=END), readers, (), NOW)
    given_up = set(plan.given_up)
    assert not given_up or when_overdue == "delete"
    for deletion in plan.deletions:
        assert start == deletion.start_offset < deletion.end_offset <= END
        for offset in range(deletion.start_offset, deletion.end_offset):
            assert not any(needs(reader, offset, given_up) for reader in readers)
        if size is None and hours is not None:
            old = [
                window for reader in readers for window in reader.windows if window.interval.end <= NOW - timedelta(hours=hours)
            ]
            anchors = [reader.anchors[0].offset for reader in readers]
            assert deletion.end_offset <= max([window.ranges[0].end_offset for window in old] + anchors)
        again = plan_topic(limit, state(start=deletion.end_offset, end=END), readers, (), NOW)
        assert again.deletions == ()
