from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.model import DAY, EPOCH, HOUR, FrozenWindow, Grid, Interval, OffsetRange, Pipeline
from logbus.status.fleet import PipelineReading
from logbus.status.lag import Lag
from logbus.status.ledger_facts import MICROSECOND, WindowFacts, micros
from logbus.status.retention_plan import DELETE, RetentionPolicy
from logbus.web.cells import Cell, CellState, cells_of, columns_of, waiting_cell
from logbus.web.overview import HOURS_MAX, FleetReading, View, span_of
from logbus.windows.missing import Gap, Missing
from logbus.windows.pipeline_chains import PipelineChain

from tests.support import cell_columns
from tests.support.fake_ledger import window
from tests.support.ledgers import at, hour

NOW = at(16.5)
SPAN = Interval(at(8), at(18))
LATENESS = timedelta(minutes=5)
WAITING = (Gap(interval=Interval(at(10), at(14)), missing=Missing.NOT_FROZEN, count=4),)


def facts(number: int, **changes: Any) -> WindowFacts:
    return WindowFacts(**{"start": micros(at(number)), "end": micros(at(number + 1)), "records": 10, "lost": 0, **changes})


def frozen(number: int, start: int, end: int) -> FrozenWindow:
    part = OffsetRange(topic="t", partition=0, start_offset=start, end_offset=end)
    return window(at(number), pipeline="p", topic="t", topic_id="id", ranges=(part,))


def reading(windows: tuple[FrozenWindow, ...] = (), **changes: Any) -> PipelineReading:
    values: dict[str, Any] = {
        "pipeline": Pipeline(name="p", topic="t", table="t", parse="lines", lateness=LATENESS),
        "chain": PipelineChain(pipeline="p", grid=Grid(), anchors={}, windows=windows),
        "lag": Lag(pipeline="p", topic="t", records_behind={0: 5}, gaps=WAITING),
        **{"topic_id": "id", "starts": {0: 0}, "ends": {0: 100}},
    }
    return PipelineReading(**{**values, **changes})


def cells(one: PipelineReading, *windows: WindowFacts) -> dict[int, Cell]:
    return {hour_of(cell.start): cell for cell in cells_of(one, windows, SPAN, NOW)}


def hour_of(instant: int) -> int:
    return (EPOCH + instant * MICROSECOND).hour


def state_of(one: PipelineReading, window: WindowFacts) -> CellState:
    return cells(one, window)[hour_of(window.start)].state


@pytest.mark.parametrize(
    ("window", "state"),
    [
        (facts(10), "closed"),
        (facts(10, attempts=1, last_state="running"), "loading"),
        (facts(10, attempts=2, last_state="failed", last_error="no memory\nat line 7"), "failed"),
        (facts(10, is_loaded=True, loaded=10), "loaded"),
        (facts(10, is_loaded=True, loaded=10, is_audited=True), "audited"),
        (facts(10, is_loaded=True, loaded=8, dead_lettered=2, is_audited=True), "dead_letters"),
        (facts(10, is_loaded=True, loaded=8, lost=2, dead_lettered=1), "lost"),
        (facts(10, head_unknown=True), "lost"),
        (facts(10, is_loaded=True, is_audited=True, last_state="running"), "audited"),
        (facts(10, is_loaded=True, is_audited=True, last_state="failed"), "audited"),
    ],
)
def test_the_gravest_of_what_holds_is_shown(window: WindowFacts, state: str) -> None:
    assert state_of(reading(), window) == state


def test_the_note_is_one_line_of_the_error() -> None:
    assert cells(reading(), facts(10, last_state="failed", last_error="no memory\nat line 7"))[10].note == "no memory"
    assert len(cells(reading(), facts(10, last_state="failed", last_error="x" * 999))[10].note or "") == 200
    assert cells(reading(), facts(10, is_loaded=True, last_state="running"))[10].note == "a rerun is under way"


def test_records_that_the_broker_deleted_unloaded_are_lost() -> None:
    one = reading((frozen(10, 0, 10), frozen(11, 10, 20)), starts={0: 13}, lag=Lag(pipeline="p", topic="t", records_behind={}))
    found = cells(one, facts(10), facts(11), facts(12))
    assert [(found[number].state, found[number].lost) for number in (10, 11, 12)] == [("lost", 10), ("lost", 3), ("closed", 0)]


def test_hours_that_nobody_froze_are_closed_as_far_as_there_is_something_to_load() -> None:
    found = cells(reading(), facts(10, is_loaded=True))
    shown = {number: str(cell.state) for number, cell in found.items()}
    assert shown == {10: "loaded", 11: "closed", 12: "closed", 13: "closed", 16: "open"}


def test_an_hour_that_nobody_froze_and_that_holds_no_record_has_no_cell() -> None:
    without = Gap(interval=hour(14), missing=Missing.NOT_FROZEN, is_empty=True)
    lag = Lag(pipeline="p", topic="t", records_behind={0: 5}, gaps=(*WAITING, without))
    assert sorted(cells(reading(lag=lag))) == [10, 11, 12, 13, 16]


def test_an_hour_is_open_until_its_lateness_is_over() -> None:
    just_after = at(16) + LATENESS - timedelta(seconds=1)
    states = {hour_of(cell.start): cell.state for cell in cells_of(reading(), (), SPAN, just_after)}
    assert (states[15], states[16]) == (CellState.OPEN, CellState.OPEN)
    later = {hour_of(cell.start): cell.state for cell in cells_of(reading(), (), SPAN, just_after + timedelta(seconds=1))}
    assert 15 not in later


def test_a_day_is_as_long_as_its_zone_has_it_and_short_windows_are_no_more_than_a_page_has_room_for() -> None:
    days = Pipeline(name="p", topic="t", table="t", parse="lines", interval=DAY, timezone="Europe/Berlin")
    begin, now = datetime(2015, 3, 28, 23, tzinfo=UTC), datetime(2015, 3, 31, 12, tzinfo=UTC)
    waiting = Gap(interval=Interval(begin, begin + 47 * HOUR), missing=Missing.NOT_FROZEN, count=2)
    one = reading(pipeline=days, lag=replace(reading().lag, gaps=(waiting,)))
    found = columns_of(cells_of(one, (), Interval(now - 7 * DAY, now + DAY), now), days.interval)
    assert (found["states"], found["runs"]) == (
        "CCO",
        [{"start": "2015-03-28T23:00:00Z", "count": 1, "seconds": 82_800}, {"start": "2015-03-29T22:00:00Z", "count": 2}],
    )
    quarter = timedelta(minutes=15)
    fleet = FleetReading(
        at=now, pipelines=[reading(pipeline=replace(days, interval=quarter, timezone="UTC"))], dag_ids={}, loaded={}
    )
    for hours, length in ((24, DAY), (HOURS_MAX, HOURS_MAX * quarter)):
        span = span_of(fleet, ["p"], View(hours=hours), now)
        assert (span.end - span.start, span.end) == (length, now + quarter)


def test_records_lost_before_they_were_frozen_are_shown_in_the_first_hour_behind() -> None:
    lag = replace(reading().lag, records_lost=7)
    found = cells(reading(lag=lag), facts(10, is_loaded=True))
    assert (found[11].state, found[11].lost, found[12].state) == (CellState.LOST, 7, CellState.CLOSED)


@pytest.mark.parametrize("records_lost", [0, 7])
def test_an_hour_alone_is_what_it_is_on_the_map(records_lost: int) -> None:
    one = reading(lag=replace(reading().lag, records_lost=records_lost))
    shown = cells(one)
    assert [waiting_cell(one, hour(number), NOW) for number in range(9, 17)] == [shown.get(number) for number in range(9, 17)]


@pytest.mark.parametrize(("hours_kept", "expiring"), [(7, {10, 11}), (24, set()), (None, set())])
def test_an_hour_that_a_limit_by_time_takes_soon_is_expiring(hours_kept: int | None, expiring: set[int]) -> None:
    """With seven hours kept, soon means within 1 h 45 min: hours 10 and 11 began more than 5 h 15 min ago."""
    settings = {"retention.ms": "-1" if hours_kept is None else str(hours_kept * 3_600_000)}
    found = cells(reading(settings=settings), facts(10), facts(11, records=10), facts(12), facts(13, records=0))
    assert {number for number, cell in found.items() if cell.state is CellState.EXPIRING} == expiring


def test_managed_retention_expires_what_it_would_delete_unloaded_and_only_that() -> None:
    policy = RetentionPolicy(topic="t", retain=timedelta(hours=2), max_hold=timedelta(hours=4), when_overdue=DELETE)
    assert state_of(reading(policy=policy), facts(10)) == CellState.EXPIRING
    assert state_of(reading(policy=replace(policy, when_overdue="alarm")), facts(10)) == CellState.CLOSED
    assert state_of(reading(policy=policy), facts(10, records=0)) == CellState.CLOSED


def test_no_hour_of_a_topic_that_is_only_compacted_expires() -> None:
    settings = {"retention.ms": str(7 * 3_600_000), "cleanup.policy": "compact"}
    policy = RetentionPolicy(topic="t", retain=timedelta(hours=2), max_hold=timedelta(hours=4), when_overdue=DELETE)
    assert state_of(reading(settings=settings, policy=policy), facts(10)) == CellState.CLOSED
    both = {**settings, "cleanup.policy": "compact,delete"}
    assert state_of(reading(settings=both), facts(10)) == CellState.EXPIRING


def test_a_limit_of_any_length_is_a_limit() -> None:
    assert state_of(reading(settings={"retention.ms": str(2**63 - 1)}), facts(10)) == CellState.CLOSED


def test_where_the_broker_does_not_tell_every_hour_since_the_last_window_may_be_behind() -> None:
    lag = Lag(pipeline="p", topic="t", records_behind={}, problem="the broker does not answer")
    found = cells(reading((frozen(12, 0, 10),), lag=lag, starts={}), facts(12, is_loaded=True))
    shown = {number: str(cell.state) for number, cell in found.items()}
    assert shown == {12: "loaded", 13: "closed", 14: "closed", 15: "closed", 16: "open"}
    assert "unknown" in str(found[13].note)


COUNTS = st.integers(0, 20)


@st.composite
def some_cells(draw: st.DrawFn) -> list[Cell]:
    """Cells in time order, most of them an hour long and adjacent to the one before."""
    found, start = list[Cell](), micros(at(0))
    for _ in range(draw(st.integers(0, 12))):
        start += draw(st.sampled_from((0, 0, 0, 1, 5))) * (HOUR // MICROSECOND)
        end = start + draw(st.sampled_from((4, 4, 4, 1, 8))) * (HOUR // MICROSECOND) // 4
        state, counts = draw(st.sampled_from(CellState)), (draw(st.none() | COUNTS), *(draw(COUNTS) for _ in range(4)))
        found.append(Cell(start, end, state, *counts, draw(st.none() | st.text(max_size=9)) or None, draw(st.booleans())))
        start = end
    return found


@given(some_cells())
def test_columns_hold_what_the_cells_hold(cells: list[Cell]) -> None:
    shown = orjson.loads(orjson.dumps({"interval_seconds": 3600, "cells": columns_of(cells, HOUR)}))
    assert cell_columns.cells(shown) == [cell.summary() for cell in cells]


def test_an_hour_as_usual_costs_a_letter_and_a_number() -> None:
    length = HOUR // MICROSECOND
    cells = [Cell(place * length, (place + 1) * length, CellState.AUDITED, 12_345, 12_345, 0, 0, 1) for place in range(168)]
    assert len(orjson.dumps(columns_of(cells, HOUR))) < 168 * 7 + 100
