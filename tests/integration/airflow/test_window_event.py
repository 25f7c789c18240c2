"""The stream of announcements from a real ledger; tests/e2e runs it in a triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome
from logbus.errors import WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.ledger import Ledger
from logbus.model import instant_text
from logbus.sensors.window_event import WindowEvents, WindowEventTrigger
from logbus.windows.handover import Stage, begin_watch, unannounced

from tests.support.ledgers import NOW, World, at

STORED, FAILED, NOBODY = (
    AdvanceOutcome(acked=1, failed=0),
    AdvanceOutcome(acked=0, failed=1),
    AdvanceOutcome(acked=0, failed=0),
)
Stream = AsyncIterator[tuple[dict[str, Any], datetime]]


@pytest.fixture
def watched(world: World) -> World:
    """Hours 1 to 3; 1 and 2 were loaded after the watch began."""
    world.fill(1.5, 2.5, 3.5)
    for number in (1, 2, 3):
        world.freeze(number)
    begin_watch(world.ledger.engine, "p/loaded", "p", Stage.LOADED, NOW)
    for number in (1, 2):
        world.mark(number, loaded_attempt=1)
    return world


def made(hook: Any = WarehouseHook) -> WindowEvents:
    return WindowEvents(WindowEventTrigger(pipeline="p", stage="loaded", poll_seconds=0.0), now=lambda: NOW, hook=hook)


async def next_hour(stream: Stream) -> int:
    """The hour of the next event."""
    event, start = await anext(stream)
    assert event["start"] == instant_text(start)
    return start.hour


def resolved(outcome: AdvanceOutcome, hour: int) -> list[AdvanceItem]:
    return [AdvanceItem(broker_payload=at(hour), outcome=outcome)]


def not_noted(world: World) -> list[int]:
    return [interval.start.hour for interval in unannounced(world.ledger.engine, "p/loaded", NOW)]


def test_each_window_is_sent_once_while_it_is_under_way(watched: World) -> None:
    async def play() -> list[int]:
        stream = made().open_stream()
        first = [await next_hour(stream), await next_hour(stream)]
        watched.mark(3, loaded_attempt=1)
        return [*first, await next_hour(stream)]

    assert asyncio.run(play()) == [1, 2, 3]
    assert not_noted(watched) == [1, 2, 3]


def test_it_is_noted_only_when_airflow_has_stored_the_event(watched: World) -> None:
    async def play() -> None:
        events = made()
        stream = events.open_stream()
        assert [await next_hour(stream), await next_hour(stream)] == [1, 2]
        await events.advance(resolved(STORED, 1))

    asyncio.run(play())
    assert not_noted(watched) == [2]


@pytest.mark.parametrize("outcome", [FAILED, NOBODY])
def test_an_event_that_nobody_stored_is_sent_again(watched: World, outcome: AdvanceOutcome) -> None:
    async def play() -> list[int]:
        events = made()
        stream = events.open_stream()
        first = [await next_hour(stream), await next_hour(stream)]
        await events.advance(resolved(outcome, 1))
        return [*first, await next_hour(stream)]

    assert asyncio.run(play()) == [1, 2, 1]


def test_a_warehouse_that_is_away_is_waited_for(watched: World) -> None:
    outages = iter([WarehouseUnavailable("restarting")] * 2)

    class Restarting(WarehouseHook):
        def ledger(self) -> Ledger:
            for outage in outages:
                raise outage
            return super().ledger()

    async def play() -> int:
        return await next_hour(made(Restarting).open_stream())

    assert asyncio.run(play()) == 1
    assert next(outages, None) is None
